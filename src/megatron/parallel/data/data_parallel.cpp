#include "megatron/parallel/data/data_parallel.h"

#include <algorithm>
#include <map>

namespace megatron {
namespace {

// The instances of a sharded state: `whole` is divided into runs of neighbours, one instance each.
DataGroups divide(const ProcessGroup& whole, const ProcessGroup& instance, bool sharded) {
  DataGroups groups;
  if (!sharded) {
    groups.replicate = whole;
    return groups;
  }
  groups.shard = instance;
  if (instance.size() < whole.size())
    groups.replicate =
        whole.split_by([&](int rank) { return rank % instance.size(); }, whole.name() + "-inter");
  return groups;
}

// The trainable parameters of a unit that are not in `placed` yet, which they join.
std::vector<Parameter*> take_new(const ParameterUnit& unit, std::vector<Parameter*>& placed) {
  std::vector<Parameter*> taken;
  for (Parameter* parameter : unit.parameters) {
    if (!parameter->trainable || std::find(placed.begin(), placed.end(), parameter) != placed.end()) continue;
    placed.push_back(parameter);
    taken.push_back(parameter);
  }
  return taken;
}

}  // namespace

DataParallel::DataParallel(RankContext& ctx, const DataParallelOptions& options,
                           const ParallelContext& parallel, std::vector<DataParallelChunk> chunks,
                           DType dtype)
    : options_(options), parallel_(parallel) {
  require(!parallel.unequal() || (options_.sharding <= Sharding::Optimizer && !options_.average),
          "data parallelism: replicas with different tensor-parallel sizes share out optimizer states alone, "
          "and sum gradients");
  bool sharded = options_.sharding != Sharding::None;
  dense_ = divide(parallel.group(Axis::dp_cp), parallel.group(Axis::intra_dp_cp), sharded);
  expert_ = divide(parallel.group(Axis::edp), parallel.group(Axis::intra_edp), sharded);
  std::vector<Parameter*> placed;
  for (DataParallelChunk& model : chunks) {
    chunks_.push_back(std::make_unique<Chunk>());
    Chunk& chunk = *chunks_.back();
    chunk.model = std::move(model);
    std::vector<Parameter*> all;
    for (ParameterUnit* unit : chunk.model.units) {
      for (Parameter* parameter : unit->parameters)
        if (!parameter->trainable && !parameter->value) parameter->allocate(ctx, dtype);
      std::vector<Parameter*> own = take_new(*unit, placed);
      if (options_.sharding == Sharding::Parameters)
        add_buckets(ctx, chunk, own, dtype);
      else
        all.insert(all.end(), own.begin(), own.end());
    }
    add_buckets(ctx, chunk, all, dtype);
    if (options_.sharding != Sharding::Parameters) continue;
    std::reverse(chunk.buckets.begin(),
                 chunk.buckets.end());  // the last layers' gradients are complete first
    watch_units(chunk);
  }
  // A tied weight is in two units, and MTP layers use embedding and output layer once more each.
  std::map<const Parameter*, int64_t> uses;
  for (const auto& chunk : chunks_)
    for (const ParameterUnit* unit : chunk->model.units)
      for (const Parameter* parameter : unit->parameters) uses[parameter] += unit->uses;
  for (const auto& chunk : chunks_) {
    if (parallel.unequal())
      for (const auto& bucket : chunk->folded) bucket->expect_uses(uses);
    else
      for (const auto& bucket : chunk->buckets) bucket->expect_uses(uses);
  }
  collect_slices(placed);
}

BucketOptions DataParallel::bucket_options(bool expert) {
  BucketOptions options{.sharding = options_.sharding,
                        .groups = expert ? expert_ : dense_,
                        .bf16_grads = options_.bf16_grads,
                        .wire = options_.wire,
                        .fp32_sums = options_.fp32_sums,
                        .overlap = options_.overlap_reduce,
                        .op = options_.average ? ReduceOp::Avg : ReduceOp::Sum};
  if (expert && options_.average)
    options.factor = static_cast<double>(parallel_.size(Axis::edp)) / parallel_.size(Axis::dp_cp);
  // One reduction runs while the next bucket fills: more would take the memory that sharding saves.
  options.before_reduction = [this](RankContext& ctx, Bucket& bucket) {
    Bucket* previous = std::exchange(reducing_, &bucket);
    if (previous && previous != &bucket) previous->finish_reduction(ctx);
  };
  return options;
}

// Of later stages and chunks, which wait for the pipeline anyway, one bucket holds all, unless asked
// otherwise.
int64_t DataParallel::bucket_size(int64_t elements, int shards, bool first_chunk) const {
  if (options_.sharding == Sharding::Parameters) return 0;  // a unit
  if (options_.num_buckets > 0) return (elements + options_.num_buckets - 1) / options_.num_buckets;
  if (options_.bucket_size > 0) return options_.bucket_size;
  bool split = options_.sharding == Sharding::Gradients ||
               (options_.overlap_reduce && parallel_.first_stage() && first_chunk);
  return split ? std::max<int64_t>(40'000'000, 1'000'000 * static_cast<int64_t>(shards)) : 0;
}

void DataParallel::add_buckets(RankContext& ctx, Chunk& chunk, std::vector<Parameter*> parameters,
                               DType dtype) {
  std::reverse(parameters.begin(), parameters.end());
  // Parameters that are sharded lie in one tensor, so those of another dtype have buckets of their own.
  const DType wide = accumulation_dtype(dtype);
  const bool apart = options_.sharding != Sharding::None && wide != dtype;
  for (const auto& [expert, keep_fp32] :
       {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    std::vector<Parameter*> members;
    std::vector<BucketItem> items;
    int64_t elements = 0;
    for (Parameter* parameter : parameters) {
      if (parameter->expert != expert || (apart && parameter->keep_fp32) != keep_fp32) continue;
      members.push_back(parameter);
      items.push_back({bucket_share(*parameter), parameter == chunk.model.tied});
      elements += items.back().numel;
    }
    BucketOptions options = bucket_options(expert);
    int ranks = options.groups.shard.size() * options.groups.replicate.size();
    BucketRules rules{.size = bucket_size(elements, ranks, &chunk == chunks_.front().get()),
                      .shards = options.groups.shard.size(),
                      .large_pad = options_.large_pad};
    for (const BucketPlan& plan : plan_buckets(items, rules))
      add_bucket(ctx, chunk, members, plan, keep_fp32 ? wide : dtype, options);
  }
}

// Where replicas differ in size, all ranks come to the same buckets by what a sync position has on average.
int64_t DataParallel::bucket_share(const Parameter& parameter) const {
  if (!parallel_.unequal()) return parameter.shard.local_shape.numel();
  const int64_t sync = parallel_.unequal()->sync;
  return (parameter.shard.global_shape.numel() + sync - 1) / sync;
}

void DataParallel::add_bucket(RankContext& ctx, Chunk& chunk, std::span<Parameter* const> members,
                              const BucketPlan& plan, DType dtype, BucketOptions options) {
  const UnequalReplicas* unequal = parallel_.unequal();
  if (!unequal) {
    chunk.buckets.push_back(std::make_unique<Bucket>(ctx, members, plan, dtype, std::move(options)));
    return;
  }
  std::vector<Parameter*> together;
  for (const BucketPlan::Place& place : plan.places) together.push_back(members[place.item]);
  chunk.folded.push_back(std::make_unique<FoldedBucket>(together, numbered_, unequal->fold, unequal->sync,
                                                        options.gradient_dtype(dtype),
                                                        options_.overlap_reduce));
  numbered_ += together.size();
  FoldedBucket& folded = *chunk.folded.back();
  folded.on_begin = [this](RankContext& rank, FoldedBucket& begun) {
    if (FoldedBucket* previous = std::exchange(folding_, &begun)) previous->finish_fold(rank);
  };
  const std::vector<Parameter*> owned = folded.sync_parameters();
  if (owned.empty()) return folded.allocate(ctx, dtype);
  std::vector<BucketItem> items;
  for (const Parameter* parameter : owned) items.push_back({parameter->shard.local_shape.numel()});
  options.gradients_only = options_.sharding == Sharding::None;
  const BucketRules rules{.shards = options.groups.shard.size(), .large_pad = options_.large_pad};
  chunk.buckets.push_back(
      std::make_unique<Bucket>(ctx, owned, plan_buckets(items, rules).front(), dtype, std::move(options)));
  folded.allocate(ctx, dtype);
}

Parameter* DataParallel::reduced(Parameter* parameter) const {
  if (!parallel_.unequal()) return parameter;
  for (const auto& chunk : chunks_)
    for (const auto& bucket : chunk->folded)
      if (Parameter* owned = bucket->sync_of(parameter)) return owned;
  return nullptr;
}

void DataParallel::watch_units(Chunk& chunk) {
  for (ParameterUnit* unit : chunk.model.units) {
    Unit held{.needed_in_backward = unit->needed_in_backward};
    for (auto& other : chunks_)  // a tied weight may be in another chunk
      for (auto& bucket : other->buckets)
        if (std::any_of(unit->parameters.begin(), unit->parameters.end(),
                        [&](Parameter* p) { return bucket->holds(p); }))
          held.buckets.push_back(bucket.get());
    size_t index = chunk.units.size();
    chunk.units.push_back(std::move(held));
    unit->acquire = [this, &chunk, index](RankContext&, UnitPass pass) { acquire(chunk, index, pass); };
    unit->release = [&chunk, index](RankContext&) {
      for (Bucket* bucket : chunk.units[index].buckets) bucket->release();
    };
  }
}

// The next unit is gathered while this one is used.
void DataParallel::acquire(Chunk& chunk, size_t unit, UnitPass pass) {
  const Unit* stale = std::exchange(chunk.prefetched, nullptr);
  for (Bucket* bucket : chunk.units[unit].buckets) bucket->acquire();
  if (stale && stale != &chunk.units[unit])
    for (Bucket* bucket : stale->buckets) bucket->drop();
  bool forward = pass == UnitPass::Forward;
  if (forward ? unit + 1 == chunk.units.size() : unit == 0) return;
  const Unit& next = chunk.units[forward ? unit + 1 : unit - 1];
  if (!forward && !next.needed_in_backward) return;
  for (Bucket* bucket : next.buckets) bucket->begin_gather();
  chunk.prefetched = &next;
}

void DataParallel::collect_slices(const std::vector<Parameter*>& order) {
  std::map<const Parameter*, size_t> place;
  for (Parameter* parameter : order)
    if (const Parameter* own = reduced(parameter)) place.emplace(own, place.size());
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets)
      for (ParameterSlice& slice : bucket->slices()) slices_.push_back(std::move(slice));
  std::sort(slices_.begin(), slices_.end(), [&](const ParameterSlice& a, const ParameterSlice& b) {
    return place.at(a.parameter) < place.at(b.parameter);
  });
  if (!parallel_.unequal()) return;
  reduced_ = slices_;
  if (options_.sharding == Sharding::None) slices_ = whole_slices(order);
}

void DataParallel::initialize(RankContext& ctx, uint64_t seed) {
  for (auto& chunk : chunks_) {
    for (auto& bucket : chunk->buckets) bucket->initialize(ctx, seed);
    for (auto& bucket : chunk->folded)
      for (Parameter* parameter : bucket->parameters()) parameter->initialize(ctx, seed);
    for (ParameterUnit* unit : chunk->model.units)
      for (Parameter* parameter : unit->parameters)
        if (!parameter->trainable) parameter->initialize(ctx, seed);
  }
}

void DataParallel::start_step(int64_t microbatches) {
  reducing_ = nullptr;
  folding_ = nullptr;
  const bool unequal = parallel_.unequal() != nullptr;
  for (auto& chunk : chunks_) {
    for (auto& bucket : chunk->folded) bucket->start_step(microbatches);
    for (auto& bucket : chunk->buckets) bucket->start_step(unequal ? 1 : microbatches);  // folded once
  }
}

void DataParallel::finish_folds(RankContext& ctx) {
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->folded) bucket->begin_fold(ctx);
  if (folding_) folding_->finish_fold(ctx);
}

void DataParallel::finish_gradients(RankContext& ctx) {
  finish_folds(ctx);
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) bucket->begin_last_reduction(ctx);
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) bucket->begin_replication(ctx);
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) bucket->finish_step();
  // First and last stage each hold a copy of a tied weight, and part of its gradient.
  for (auto& chunk : chunks_) {
    const Parameter* tied = chunk->model.tied ? reduced(chunk->model.tied) : nullptr;
    for (auto& bucket : chunk->buckets)
      if (tied && bucket->holds(tied)) parallel_.group(Axis::embd).all_reduce(bucket->gradient()).wait();
  }
  if (parallel_.unequal()) {
    for (auto& chunk : chunks_)
      for (auto& bucket : chunk->folded)
        if (options_.sharding == Sharding::None) bucket->unfold_gradients(ctx);
    return;
  }
  for (bool expert : {false, true}) sum_partial_gradients(ctx, expert);
}

// Those of which every TP (or, of experts, ETP) rank has a part: put together, so that there is one
// collective and not one per norm.
void DataParallel::sum_partial_gradients(RankContext& ctx, bool expert) {
  auto is_partial = [&](const ParameterSlice& slice) {
    return slice.parameter->partial_over_tp && slice.parameter->expert == expert;
  };
  int64_t total = 0;
  for (const ParameterSlice& slice : slices_)
    if (is_partial(slice)) total += slice.gradient.numel();
  if (total == 0) return;
  Tensor all = ctx.empty({total}, slices_[0].gradient.dtype(), MemoryTag::Communication);
  auto each = [&](auto copy) {
    int64_t at = 0;
    for (const ParameterSlice& slice : slices_) {
      if (!is_partial(slice)) continue;
      int64_t n = slice.gradient.numel();
      copy(slice.gradient.view({n}), all.slice(0, at, at + n));
      at += n;
    }
  };
  each([&](const Tensor& own, const Tensor& there) {
    ctx.kernels->copy(ctx.kernel_context(), {own, there});
  });
  parallel_.group(expert ? Axis::etp : Axis::tp).all_reduce(all).wait();
  each([&](const Tensor& own, const Tensor& there) {
    ctx.kernels->copy(ctx.kernel_context(), {there, own});
  });
}

void DataParallel::publish_parameters(RankContext& ctx) {
  if (options_.sharding == Sharding::None || options_.sharding == Sharding::Parameters) return;
  for (auto& chunk : chunks_)  // in the order in which the next forward pass uses them
    for (auto bucket = chunk->buckets.rbegin(); bucket != chunk->buckets.rend(); ++bucket)
      (*bucket)->begin_gather();
  if (!options_.overlap_gather || parallel_.unequal()) finish_parameters();
  for (auto& chunk : chunks_)
    for (auto bucket = chunk->folded.rbegin(); bucket != chunk->folded.rend(); ++bucket)
      (*bucket)->unfold_values(ctx);
}

void DataParallel::values_written(RankContext& ctx) {
  if (options_.sharding == Sharding::None) return;
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->folded) bucket->fold_values(ctx);
}

void DataParallel::set_parameters(RankContext& ctx, const std::function<void()>& set) {
  finish_parameters();
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) bucket->acquire();
  set();
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) {
      bucket->keep_own_part(ctx);
      bucket->release();
    }
  values_written(ctx);
}

void DataParallel::finish_parameters() {
  if (options_.sharding == Sharding::Parameters) return;
  for (auto& chunk : chunks_)
    for (auto& bucket : chunk->buckets) bucket->finish_gather();
}

}  // namespace megatron
