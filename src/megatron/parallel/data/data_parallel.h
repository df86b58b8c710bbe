#pragma once

#include <memory>

#include "megatron/nn/parameter_unit.h"
#include "megatron/parallel/data/bucket.h"
#include "megatron/parallel/data/folded_bucket.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct DataParallelOptions {
  Sharding sharding = Sharding::None;
  bool bf16_grads = false;         // bf16 parameters: gradients gather and are summed over ranks in bf16
  std::optional<DType> wire = {};  // in which gradients are summed over ranks; empty: as they are kept
  bool fp32_sums = false;          // of sharded bf16 gradients
  bool overlap_reduce = false;
  bool overlap_gather = false;
  bool average = false;     // collectives average, where losses are scaled by loss_factor()
  int64_t bucket_size = 0;  // in elements; 0: the default
  int64_t num_buckets = 0;  // instead of a size
  bool large_pad = false;
};

// A chunk of the model as data parallelism sees it.
struct DataParallelChunk {
  std::vector<ParameterUnit*> units;  // in order of use; a parameter may be in several
  Parameter* tied = nullptr;          // where another pipeline stage has a copy
};

// One rank's share in data parallelism: it owns the memory of all parameters and gradients, adds gradients up
// over the ranks (those of experts over the expert grid), and says which slices this rank updates.
class DataParallel {
 public:
  DataParallel(RankContext& ctx, const DataParallelOptions& options, const ParallelContext& parallel,
               std::vector<DataParallelChunk> chunks, DType dtype);
  DataParallel(const DataParallel&) = delete;  // units and parameters point here
  DataParallel& operator=(const DataParallel&) = delete;

  void initialize(RankContext& ctx, uint64_t seed);

  // What this rank updates, in the order of the parameters.
  std::span<const ParameterSlice> slices() const { return slices_; }
  // The summed gradients, each element once in a replica: what norms are made of. Where replicas have
  // tensor-parallel groups of different sizes these are not what ranks compute with.
  std::span<const ParameterSlice> reduced_slices() const { return parallel_.unequal() ? reduced_ : slices_; }
  Sharding sharding() const { return options_.sharding; }
  // The ranks that share out dense or expert parameters.
  const ProcessGroup& shard_group(bool expert) const { return (expert ? expert_ : dense_).shard; }
  // By which every loss must be multiplied before backward so that gradients come out as sums.
  double loss_factor() const { return options_.average ? parallel_.size(Axis::dp_cp) : 1.0; }

  // A step: forward and backward of all micro-batches between the two; then the gradients of slices() are
  // those of the global batch.
  void start_step(int64_t microbatches);
  void finish_gradients(RankContext& ctx);

  // After the update of slices(): every rank gets the new values, at once or, overlapped, when it uses them.
  void publish_parameters(RankContext& ctx);
  // Runs `set`, which writes values from elsewhere; all parameters have memory meanwhile.
  void set_parameters(RankContext& ctx, const std::function<void()>& set);
  void values_written(RankContext& ctx);  // otherwise than by it: what slices() say of them follows
  void finish_parameters();               // before values are read other than by Parameter::get()

 private:
  struct Unit {
    std::vector<Bucket*> buckets;
    bool needed_in_backward = true;
  };
  struct Chunk {
    DataParallelChunk model;
    std::vector<std::unique_ptr<FoldedBucket>> folded;  // where replicas differ in size, else none
    std::vector<std::unique_ptr<Bucket>> buckets;       // in the order in which gradients complete
    std::vector<Unit> units;
    const Unit* prefetched = nullptr;
  };

  BucketOptions bucket_options(bool expert);
  int64_t bucket_size(int64_t elements, int shards, bool first_chunk) const;
  int64_t bucket_share(const Parameter& parameter) const;  // its elements as buckets are planned
  void add_buckets(RankContext& ctx, Chunk& chunk, std::vector<Parameter*> parameters, DType dtype);
  void add_bucket(RankContext& ctx, Chunk& chunk, std::span<Parameter* const> members, const BucketPlan& plan,
                  DType dtype, BucketOptions options);
  Parameter* reduced(Parameter* parameter) const;  // whose gradient is summed over replicas for it; or null
  void watch_units(Chunk& chunk);
  void acquire(Chunk& chunk, size_t unit, UnitPass pass);
  void collect_slices(const std::vector<Parameter*>& order);
  void sum_partial_gradients(RankContext& ctx, bool expert);
  void finish_folds(RankContext& ctx);

  DataParallelOptions options_;
  const ParallelContext& parallel_;
  DataGroups dense_, expert_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<ParameterSlice> slices_, reduced_;
  FoldedBucket* folding_ = nullptr;  // whose fold began last
  size_t numbered_ = 0;              // parameters in folded buckets so far
  Bucket* reducing_ = nullptr;       // sharded gradients: the bucket whose reduction began last
};

}  // namespace megatron
