#include "megatron/parallel/data/folded_bucket.h"

namespace megatron {
namespace {

Tensor box_view(Tensor tensor, const Box& box) {
  for (int d = 0; d < box.offset.rank(); ++d)
    tensor = tensor.slice(d, box.offset[d], box.offset[d] + box.extent[d]);
  return tensor;
}

// All of a tensor for one position, nothing for the others.
ShardSpec owned_whole(const ShardSpec& shard, bool owner) {
  if (owner) return shard;
  ShardSpec none = shard;
  none.blocks.clear();
  none.local_shape[0] = 0;
  return none;
}

FoldItem item_of(const Parameter& parameter, size_t number, int size, int sync) {
  FoldItem item{.held = {}, .owned = {}, .summed = parameter.partial_over_tp};
  for (int rank = 0; rank < size; ++rank)
    item.held.push_back(parameter.holders ? parameter.holders.held(rank) : parameter.shard);
  const auto owner = static_cast<int>(number % static_cast<size_t>(sync));
  for (int position = 0; position < sync; ++position)
    item.owned.push_back(parameter.holders ? parameter.holders.owned(position)
                                           : owned_whole(parameter.shard, position == owner));
  if (!parameter.holders) return item;
  // Rows that several ranks hold have a part of the gradient on each.
  int64_t all = 0;
  for (const ShardSpec& shard : item.held)
    for (const ShardBlock& block : shard.blocks) all += block.extent.numel();
  item.summed = all > parameter.shard.global_shape.numel();
  return item;
}

// Whether what is held are the first rows of what is owned, so that one lies at the beginning of the other.
bool is_head_of(const ShardSpec& held, const ShardSpec& owned) {
  if (held.local_shape.rank() == 0 || held.local_shape[0] > owned.local_shape[0]) return false;
  for (int d = 1; d < held.local_shape.rank(); ++d)
    if (held.local_shape[d] != owned.local_shape[d]) return false;
  if (held.blocks.size() > owned.blocks.size()) return false;
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const ShardBlock &a = held.blocks[i], &b = owned.blocks[i];
    if (!(a.global_offset == b.global_offset) || !(a.local_offset == b.local_offset)) return false;
    const bool last = i + 1 == held.blocks.size();
    if (!(a.extent == b.extent) && !(last && a.extent[0] < b.extent[0])) return false;
  }
  return true;
}

std::unique_ptr<Parameter> sync_parameter(const Parameter& like, const ShardSpec& owned) {
  if (owned.blocks.empty()) return nullptr;
  auto sync = std::make_unique<Parameter>(like.name, owned, like.initializer);
  sync->expert = like.expert;
  sync->keep_fp32 = like.keep_fp32;
  sync->tied_copy = like.tied_copy;
  sync->decays = like.decays;
  return sync;
}

}  // namespace

FoldedBucket::FoldedBucket(std::vector<Parameter*> parameters, size_t first, const ProcessGroup& fold,
                           int sync, DType gradient_dtype, bool overlap)
    : parameters_(std::move(parameters)), group_(fold), gradient_dtype_(gradient_dtype), overlap_(overlap) {
  std::vector<FoldItem> items;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    items.push_back(item_of(parameter, first + i, fold.size(), sync));
    summed_.push_back(items.back().summed);
    Member& member = members_.emplace_back();
    member.parameter = &parameter;
    if (fold.rank() < sync)
      member.sync = sync_parameter(parameter, items.back().owned[static_cast<size_t>(fold.rank())]);
    member.in_place = member.sync && !summed_[i] && is_head_of(parameter.shard, member.sync->shard);
  }
  for (Member& member : members_)
    member.parameter->accumulator.on_contribution = [this, &member](RankContext& rank) {
      count_contribution(rank, member);
    };
  plan_ = FoldPlan::of(items);
  for (FoldItem& item : items) item.summed = false;
  value_plan_ = FoldPlan::of(items);
}

void FoldedBucket::allocate(RankContext& ctx, DType dtype) {
  for (const Member& member : members_) {
    Parameter& parameter = *member.parameter;
    const auto head = [&](const Tensor& owned) { return owned.slice(0, 0, parameter.shard.local_shape[0]); };
    if (member.in_place && member.sync->value)
      parameter.value = head(member.sync->value);
    else
      parameter.allocate(ctx, dtype);
    parameter.accumulator.main_grad =
        member.in_place ? head(member.sync->accumulator.main_grad)
                        : ctx.zeros(parameter.shard.local_shape, gradient_dtype_, MemoryTag::Gradient);
  }
}

std::vector<Parameter*> FoldedBucket::sync_parameters() const {
  std::vector<Parameter*> list;
  for (const Member& member : members_)
    if (member.sync) list.push_back(member.sync.get());
  return list;
}

Parameter* FoldedBucket::sync_of(const Parameter* parameter) const {
  for (const Member& member : members_)
    if (member.parameter == parameter) return member.sync.get();
  return nullptr;
}

void FoldedBucket::expect_uses(const std::map<const Parameter*, int64_t>& uses) {
  for (Member& member : members_)
    if (const auto found = uses.find(member.parameter); found != uses.end()) member.uses = found->second;
}

void FoldedBucket::start_step(int64_t microbatches) {
  microbatches_ = microbatches;
  begun_ = false;
  missing_ = static_cast<int64_t>(members_.size());
  for (Member& member : members_) {
    member.count = 0;
    member.parameter->accumulator.start_step();
  }
}

// The ranks of a group go through the same backward pass, so they fold the same buckets in the same order.
void FoldedBucket::count_contribution(RankContext& ctx, Member& member) {
  ++member.count;
  require(!begun_,
          "gradients: {} had {} contributions per micro-batch in the first step and more now, after its "
          "bucket was folded; turn overlap_grad_reduce off",
          member.parameter->name, member.uses);
  if (overlap_ && uses_known_ && member.count == member.uses * microbatches_ && --missing_ == 0)
    begin_fold(ctx);
}

void FoldedBucket::begin_fold(RankContext& ctx) {
  if (begun_) return;
  begun_ = folding_ = true;
  for (Member& member : members_) {
    if (member.count > 0) member.uses = std::max<int64_t>(1, member.count / microbatches_);
    if (!member.parameter->accumulator.has_value())
      ctx.kernels->fill(ctx.kernel_context(), {member.parameter->accumulator.main_grad, 0});
  }
  uses_known_ = true;
  flight_ = send(ctx, plan_.fold, What::Gradient, true);
  if (on_begin) on_begin(ctx, *this);
}

void FoldedBucket::finish_fold(RankContext& ctx) {
  if (!folding_) return;
  folding_ = false;
  for (size_t i = 0; i < members_.size(); ++i)
    if (summed_[i] && members_[i].sync)
      ctx.kernels->fill(ctx.kernel_context(), {members_[i].sync->accumulator.main_grad, 0});
  receive(ctx, plan_.fold, std::exchange(flight_, {}), What::Gradient, true, true);
  for (Member& member : members_) {
    if (!member.sync) continue;
    member.sync->accumulator.expect_use();
    member.sync->accumulator.contribute(ctx);
  }
}

void FoldedBucket::unfold_gradients(RankContext& ctx) { unfold(ctx, What::Gradient); }
void FoldedBucket::unfold_values(RankContext& ctx) { unfold(ctx, What::Value); }

void FoldedBucket::unfold(RankContext& ctx, What what) {
  receive(ctx, plan_.unfold, send(ctx, plan_.unfold, what, false), what, false, false);
}

void FoldedBucket::fold_values(RankContext& ctx) {
  receive(ctx, value_plan_.fold, send(ctx, value_plan_.fold, What::Value, true), What::Value, true, false);
}

Tensor FoldedBucket::held(size_t item, What what) const {
  const Parameter& parameter = *members_[item].parameter;
  return what == What::Gradient ? parameter.accumulator.main_grad : parameter.value;
}

Tensor FoldedBucket::owned(size_t item, What what) const {
  const Parameter& sync = *members_[item].sync;
  return what == What::Gradient ? sync.accumulator.main_grad : sync.value;
}

bool FoldedBucket::shares_memory(size_t item, What what) const {
  return members_[item].in_place && held(item, what).raw() == owned(item, what).raw();
}

// A message between two ranks has the boxes of its parts end to end. In a fold holders send, otherwise
// owners.
FoldedBucket::InFlight FoldedBucket::send(RankContext& ctx, const std::vector<FoldMessage>& messages,
                                          What what, bool fold) const {
  InFlight flight;
  std::vector<Message> batch;
  for (const FoldMessage& message : messages) {
    const int from = fold ? message.holder : message.owner, to = fold ? message.owner : message.holder;
    if (from == to || (from != group_.rank() && to != group_.rank())) continue;
    const DType dtype = what == What::Gradient ? gradient_dtype_ : held(message.parts[0].item, what).dtype();
    Tensor flat = ctx.empty({message.numel()}, dtype, MemoryTag::Communication);
    if (to == group_.rank()) {
      flight.arriving.emplace_back(&message, flat);
      batch.push_back({Message::Direction::Recv, flat, from});
      continue;
    }
    int64_t at = 0;
    for (const FoldPart& part : message.parts) {
      const Tensor source =
          box_view(fold ? held(part.item, what) : owned(part.item, what), fold ? part.held : part.owned);
      const int64_t n = source.numel();
      ctx.kernels->copy(ctx.kernel_context(), {source, flat.slice(0, at, at + n).view(part.held.extent)});
      at += n;
    }
    batch.push_back({Message::Direction::Send, flat, to});
    flight.leaving.push_back(std::move(flat));
  }
  if (!batch.empty()) flight.work = group_.batch_send_recv(batch);
  return flight;
}

// In the order of the plan, so that sums have one order; a rank's own part is one of them.
void FoldedBucket::receive(RankContext& ctx, const std::vector<FoldMessage>& messages, InFlight flight,
                           What what, bool fold, bool add) const {
  flight.work.wait();
  auto next = flight.arriving.begin();
  for (const FoldMessage& message : messages) {
    const int from = fold ? message.holder : message.owner, to = fold ? message.owner : message.holder;
    if (to != group_.rank()) continue;
    const bool own = from == to;
    const Tensor flat = own ? Tensor{} : (next++)->second;
    int64_t at = 0;
    for (const FoldPart& part : message.parts) {
      if (own && shares_memory(part.item, what)) continue;
      Tensor source, target;
      if (own) {
        source =
            box_view(fold ? held(part.item, what) : owned(part.item, what), fold ? part.held : part.owned);
      } else {
        source = flat.slice(0, at, at + part.held.volume()).view(part.held.extent);
        at += part.held.volume();
      }
      target = box_view(fold ? owned(part.item, what) : held(part.item, what), fold ? part.owned : part.held);
      if (add && summed_[part.item])
        ctx.kernels->binary(ctx.kernel_context(), {Binary::Add, target, source, target});
      else
        ctx.kernels->copy(ctx.kernel_context(), {source, target});
    }
  }
}

}  // namespace megatron
