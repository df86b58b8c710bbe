#pragma once

#include <map>
#include <optional>

#include "megatron/comm/process_group.h"
#include "megatron/nn/parameter_slice.h"
#include "megatron/parallel/data/bucket_plan.h"

namespace megatron {

// What data-parallel ranks share out among them; each level includes those before it.
enum class Sharding : uint8_t { None, Optimizer, Gradients, Parameters };  // ZeRO 0 to 3

// Where gradients are summed: over shard × replicate. Each rank of `shard` owns one part of a bucket;
// the ranks of `replicate` own the same part.
struct DataGroups {
  ProcessGroup shard = ProcessGroup::self("shard"), replicate = ProcessGroup::self("replicate");
};

struct BucketOptions {
  Sharding sharding = Sharding::None;
  DataGroups groups = {};
  bool bf16_grads = false;  // bf16 parameters: gradients in bf16 too, otherwise fp32
  // In which gradients of parameters up to fp32 are summed over `shard`; empty: as they are kept.
  std::optional<DType> wire = {};
  bool fp32_sums = false;       // sharded bf16 gradients: all parts are sent, and added in fp32
  bool gradients_only = false;  // values are elsewhere
  bool overlap = false;         // a reduction begins as soon as the last gradient is there
  ReduceOp op = ReduceOp::Sum;  // or the average over the groups
  double factor = 1;            // of the gradients, before they are reduced
  std::function<void(RankContext&, class Bucket&)> before_reduction = {};  // of sharded gradients

  // Of gradients of parameters of `dtype`.
  DType gradient_dtype(DType dtype) const {
    return bf16_grads && dtype == DType::BF16 ? dtype : accumulation_dtype(dtype);
  }
  // In which those are sent.
  DType wire_dtype(DType dtype) const { return wire && dtype != DType::F64 ? *wire : gradient_dtype(dtype); }
};

// Parameters whose gradients lie in one flat buffer and are reduced together. Where states are sharded, their
// values lie in one too. Sharded gradients (parameters) have memory for the whole bucket only while they are
// being made and reduced (used).
class Bucket {
 public:
  // Gives every parameter its memory.
  Bucket(RankContext& ctx, std::span<Parameter* const> parameters, const BucketPlan& plan, DType dtype,
         BucketOptions options);
  Bucket(const Bucket&) = delete;  // the sinks of its parameters point here
  Bucket& operator=(const Bucket&) = delete;

  void initialize(RankContext& ctx, uint64_t seed);
  bool holds(const Parameter* parameter) const;
  // What this rank updates.
  std::vector<ParameterSlice> slices() const;

  // How often a micro-batch contributes to a parameter, as far as that is known before the first step: so
  // that it is reduced like every other, and a run that is started again has the same sums.
  void expect_uses(const std::map<const Parameter*, int64_t>& uses);

  // Gradients. Between start_step() and finish_step() reductions begin by themselves where they can; the
  // three last calls are for every bucket in turn, so that they run side by side.
  void start_step(int64_t microbatches);
  void finish_reduction(RankContext& ctx);  // the one under way, if any
  void begin_last_reduction(RankContext& ctx);
  void begin_replication(RankContext& ctx);
  void finish_step();
  const Tensor& gradient() const { return gradient_shard_; }  // this rank's part, between two steps

  // Values. Gathering brings the parts that the ranks have updated together.
  void begin_gather();
  void finish_gather();
  void acquire();  // sharded parameters: there until as many release()
  void release();
  void keep_own_part(RankContext& ctx);  // of values that were set while acquired
  void drop();                           // where nobody has acquired it

 private:
  struct Member {
    Parameter* parameter;
    int64_t offset, numel;
    int64_t uses = 1;                 // contributions per micro-batch, expected or as the first step shows
    int64_t count = 0, in_round = 0;  // contributions in this step; since the last reduction
  };

  bool by_round() const { return options_.sharding >= Sharding::Gradients; }
  int64_t shard_size() const { return numel_ / options_.groups.shard.size(); }
  Tensor own_part(const Tensor& flat) const;
  void count_contribution(RankContext& ctx, Member& member);
  void open_gradients(RankContext& ctx);
  void begin_reduction(RankContext& ctx);
  void begin_sum(RankContext& ctx);
  void take_sum(RankContext& ctx);
  void start_round();

  BucketOptions options_;
  DType wire_;
  int64_t numel_;
  std::vector<Member> members_;
  Tensor gradients_, gradient_shard_, arriving_;  // arriving: a further micro-batch's reduced part
  Tensor sent_, parts_;  // of a reduction in another dtype or by parts: a copy of gradients_, what came of it
  Tensor parameters_, parameter_shard_;
  Work reduction_, gather_;
  int64_t microbatches_ = 1, missing_ = 0;
  bool uses_known_ = false, reducing_ = false, reduced_ = false;
  int users_ = 0;
};

}  // namespace megatron
