#include "megatron/parallel/data/bucket.h"

namespace megatron {

Bucket::Bucket(RankContext& ctx, std::span<Parameter* const> parameters, const BucketPlan& plan, DType dtype,
               BucketOptions options)
    : options_(std::move(options)), wire_(options_.wire_dtype(dtype)), numel_(plan.numel) {
  if (options_.groups.shard.size() == 1) options_.sharding = Sharding::None;  // nothing to share out
  for (const BucketPlan::Place& place : plan.places) {
    Parameter* parameter = parameters[place.item];
    members_.push_back({parameter, place.offset, parameter->shard.local_shape.numel()});
  }
  auto view = [](const Tensor& flat, const Member& member) {
    return flat.slice(0, member.offset, member.offset + member.numel)
        .view(member.parameter->shard.local_shape);
  };
  const DType sums = options_.gradient_dtype(dtype);
  gradients_ = ctx.zeros({numel_}, sums, MemoryTag::Gradient);
  gradient_shard_ = by_round() ? ctx.zeros({shard_size()}, sums, MemoryTag::Gradient) : own_part(gradients_);
  if (options_.sharding != Sharding::None) {
    parameters_ = ctx.zeros({numel_}, dtype, MemoryTag::Parameter);
    parameter_shard_ = options_.sharding == Sharding::Parameters
                           ? ctx.empty({shard_size()}, dtype, MemoryTag::Parameter)
                           : own_part(parameters_);
  }
  for (Member& member : members_) {
    Parameter& parameter = *member.parameter;
    if (parameters_)
      parameter.value = view(parameters_, member);
    else if (!options_.gradients_only)
      parameter.allocate(ctx, dtype);
    parameter.sharded = options_.sharding == Sharding::Parameters;
    parameter.accumulator.main_grad = view(gradients_, member);
    parameter.accumulator.on_contribution = [this, &member](RankContext& rank) {
      count_contribution(rank, member);
    };
    if (by_round()) parameter.accumulator.before_write = [this](RankContext& rank) { open_gradients(rank); };
    if (parameters_ && !parameter.sharded) parameter.before_use = [this](RankContext&) { finish_gather(); };
  }
  if (by_round()) gradients_.storage().free();
  if (options_.sharding == Sharding::Parameters) parameters_.storage().free();
}

void Bucket::initialize(RankContext& ctx, uint64_t seed) {
  if (options_.gradients_only) return;
  bool sharded = options_.sharding == Sharding::Parameters;
  if (sharded) {
    parameters_.storage().restore();
    ctx.kernels->fill(ctx.kernel_context(), {parameters_, 0});
  }
  for (Member& member : members_) member.parameter->initialize(ctx, seed);
  if (!sharded) return;
  keep_own_part(ctx);
  parameters_.storage().free();
}

void Bucket::keep_own_part(RankContext& ctx) {
  if (options_.sharding == Sharding::Parameters)
    ctx.kernels->copy(ctx.kernel_context(), {own_part(parameters_), parameter_shard_});
}

bool Bucket::holds(const Parameter* parameter) const {
  for (const Member& member : members_)
    if (member.parameter == parameter) return true;
  return false;
}

Tensor Bucket::own_part(const Tensor& flat) const {
  int64_t begin = shard_size() * options_.groups.shard.rank();
  return flat.slice(0, begin, begin + shard_size());
}

std::vector<ParameterSlice> Bucket::slices() const {
  std::vector<ParameterSlice> slices;
  int64_t own_begin = shard_size() * options_.groups.shard.rank(), own_end = own_begin + shard_size();
  for (const Member& member : members_) {
    Parameter& parameter = *member.parameter;
    if (options_.sharding == Sharding::None) {
      slices.push_back({&parameter, 0, parameter.value, parameter.accumulator.main_grad});
      continue;
    }
    int64_t begin = std::max(member.offset, own_begin), end = std::min(member.offset + member.numel, own_end);
    if (begin >= end) continue;
    slices.push_back(
        {&parameter, begin - member.offset, parameter_shard_.slice(0, begin - own_begin, end - own_begin),
         gradient_shard_.slice(0, begin - own_begin, end - own_begin), member.offset, shard_size()});
  }
  return slices;
}

void Bucket::expect_uses(const std::map<const Parameter*, int64_t>& uses) {
  for (Member& member : members_)
    if (const auto found = uses.find(member.parameter); found != uses.end()) member.uses = found->second;
}

void Bucket::start_step(int64_t microbatches) {
  microbatches_ = microbatches;
  reduced_ = false;
  for (Member& member : members_) member.count = 0;
  start_round();
}

void Bucket::start_round() {
  missing_ = static_cast<int64_t>(members_.size());
  for (Member& member : members_) {
    member.in_round = 0;
    member.parameter->accumulator.start_step();
  }
}

// Sharded gradients are reduced after every micro-batch, for there is no memory to keep them; should one come
// late, it goes with the next round. Otherwise the reduction waits for the last micro-batch, and for the
// first step to show how often each parameter is used.
void Bucket::count_contribution(RankContext& ctx, Member& member) {
  ++member.count;
  ++member.in_round;
  if (by_round()) {
    if (member.in_round != member.uses || --missing_ > 0) return;
    begin_reduction(ctx);
    if (!options_.overlap) finish_reduction(ctx);
    return;
  }
  require(!reduced_,
          "gradients: {} had {} contributions per micro-batch in the first step and more now, after its "
          "bucket was reduced; turn overlap_grad_reduce off",
          member.parameter->name, member.uses);
  bool last = options_.overlap && uses_known_ && member.count == member.uses * microbatches_;
  if (last && --missing_ == 0) begin_reduction(ctx);
}

void Bucket::open_gradients(RankContext& ctx) {
  finish_reduction(ctx);
  if (!gradients_.storage().freed()) return;
  gradients_.storage().restore();
  // What lies between parameters is reduced too.
  int64_t end = 0;
  for (const Member& member : members_) {
    if (member.offset > end)
      ctx.kernels->fill(ctx.kernel_context(), {gradients_.slice(0, end, member.offset), 0});
    end = member.offset + member.numel;
  }
  if (numel_ > end) ctx.kernels->fill(ctx.kernel_context(), {gradients_.slice(0, end, numel_), 0});
}

void Bucket::begin_reduction(RankContext& ctx) {
  finish_reduction(ctx);
  if (by_round() && options_.before_reduction) options_.before_reduction(ctx, *this);
  for (Member& member : members_)
    if (!member.parameter->accumulator.has_value())
      ctx.kernels->fill(ctx.kernel_context(), {member.parameter->accumulator.main_grad, 0});
  if (options_.factor != 1)
    ctx.kernels->axpby(ctx.kernel_context(), {.alpha = options_.factor, .a = gradients_, .out = gradients_});
  if (by_round() && reduced_) arriving_ = ctx.empty({shard_size()}, gradients_.dtype(), MemoryTag::Gradient);
  reducing_ = true;
  begin_sum(ctx);
  reduced_ = true;
  if (by_round()) start_round();
}

void Bucket::begin_sum(RankContext& ctx) {
  const auto& [shard, replicate] = options_.groups;
  sent_ = gradients_;
  if (wire_ != gradients_.dtype()) {
    sent_ = ctx.empty({numel_}, wire_, MemoryTag::Gradient);
    ctx.kernels->copy(ctx.kernel_context(), {gradients_, sent_});
  }
  if (options_.sharding == Sharding::None) {
    if (replicate.size() > 1) reduction_ = replicate.all_reduce(sent_, options_.op);
    return;
  }
  if (options_.fp32_sums) {
    parts_ = ctx.empty({numel_}, wire_, MemoryTag::Gradient);
    reduction_ = shard.all_to_all(sent_, parts_);
    return;
  }
  Tensor sum = arriving_ ? arriving_ : gradient_shard_;
  if (wire_ != sum.dtype()) sum = parts_ = ctx.empty({shard_size()}, wire_, MemoryTag::Gradient);
  reduction_ = shard.reduce_scatter(sent_, sum, options_.op);
}

// Parts are added in the order of ranks, and the sum is rounded once.
void Bucket::take_sum(RankContext& ctx) {
  const auto kernels = ctx.kernel_context();
  if (options_.sharding == Sharding::None) {
    if (wire_ != gradients_.dtype()) ctx.kernels->copy(kernels, {sent_, gradients_});
  } else if (parts_) {
    const Tensor target = arriving_ ? arriving_ : gradient_shard_;
    const int64_t size = shard_size();
    Tensor sum = parts_.slice(0, 0, size);
    for (int64_t end = 2 * size; end <= parts_.numel(); end += size) {
      const Tensor wide = ctx.empty({size}, accumulation_dtype(wire_), MemoryTag::Gradient);
      ctx.kernels->axpby(kernels, {.a = sum, .b = parts_.slice(0, end - size, end), .out = wide});
      sum = wide;
    }
    const bool average = options_.fp32_sums && options_.op == ReduceOp::Avg;
    ctx.kernels->axpby(
        kernels, {.alpha = average ? 1.0 / options_.groups.shard.size() : 1.0, .a = sum, .out = target});
  }
  sent_ = parts_ = {};
}

void Bucket::finish_reduction(RankContext& ctx) {
  if (!reducing_) return;
  reduction_.wait();
  reducing_ = false;
  take_sum(ctx);
  if (!by_round()) return;
  if (arriving_)
    ctx.kernels->axpby(ctx.kernel_context(), {.a = arriving_, .b = gradient_shard_, .out = gradient_shard_});
  arriving_ = {};
  gradients_.storage().free();
}

void Bucket::begin_last_reduction(RankContext& ctx) {
  bool waiting = false;
  for (Member& member : members_) {
    waiting |= member.in_round > 0;
    if (member.count > 0) member.uses = std::max<int64_t>(1, member.count / microbatches_);
  }
  uses_known_ = true;
  if (reduced_ && !(by_round() && waiting)) return;
  if (by_round()) open_gradients(ctx);
  begin_reduction(ctx);
}

void Bucket::begin_replication(RankContext& ctx) {
  finish_reduction(ctx);
  if (options_.sharding != Sharding::None && options_.groups.replicate.size() > 1)
    reduction_ = options_.groups.replicate.all_reduce(gradient_shard_, options_.op);
}

void Bucket::finish_step() { reduction_.wait(); }

void Bucket::begin_gather() {
  if (options_.sharding == Sharding::None) return;
  if (options_.sharding == Sharding::Parameters) {
    if (!parameters_.storage().freed()) return;  // there, or on its way
    parameters_.storage().restore();
  }
  gather_ = options_.groups.shard.all_gather(parameter_shard_, parameters_);
}

void Bucket::finish_gather() { gather_.wait(); }

void Bucket::acquire() {
  ++users_;
  if (options_.sharding != Sharding::Parameters) return;
  begin_gather();
  finish_gather();
}

void Bucket::release() {
  if (--users_ == 0) drop();
}

void Bucket::drop() {
  if (options_.sharding != Sharding::Parameters || users_ > 0 || parameters_.storage().freed()) return;
  finish_gather();
  parameters_.storage().free();
}

}  // namespace megatron
