#pragma once

#include <map>
#include <memory>

#include "megatron/comm/process_group.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/data/fold_plan.h"

namespace megatron {

// Parameters that travel together between the layout in which the ranks of a tensor-parallel group compute
// and the one in which replicas of different sizes meet. Their gradients are folded into those of sync
// parameters, which data parallelism sums over replicas and optimizers may update; what comes of that is
// unfolded again.
class FoldedBucket {
 public:
  // `first`: the number of the first parameter in the model: those that ranks hold whole are owned in turn.
  FoldedBucket(std::vector<Parameter*> parameters, size_t first, const ProcessGroup& fold, int sync,
               DType gradient_dtype, bool overlap);
  FoldedBucket(const FoldedBucket&) = delete;  // the accumulators of its parameters point here
  FoldedBucket& operator=(const FoldedBucket&) = delete;

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  // What this rank owns, in the same order; none beyond the sync positions.
  std::vector<Parameter*> sync_parameters() const;
  Parameter* sync_of(const Parameter* parameter) const;  // null: it owns nothing of it

  // Gives every parameter its memory, once the sync parameters have theirs: where a rank holds the first rows
  // of what it owns, or all of it, it computes with the owner's memory.
  void allocate(RankContext& ctx, DType dtype);

  // How often a micro-batch contributes to a parameter.
  void expect_uses(const std::map<const Parameter*, int64_t>& uses);
  void start_step(int64_t microbatches);
  // Sends gradients to their owners, unless that has begun by itself; then adds up what comes.
  void begin_fold(RankContext& ctx);
  void finish_fold(RankContext& ctx);
  // Brings the sync parameters' gradients or values back to all holders.
  void unfold_gradients(RankContext& ctx);
  void unfold_values(RankContext& ctx);
  // Fills the sync parameters' values from those of the holders.
  void fold_values(RankContext& ctx);
  std::function<void(RankContext&, FoldedBucket&)> on_begin;  // of its fold

 private:
  struct Member {
    Parameter* parameter;
    std::unique_ptr<Parameter> sync;  // null: another position owns it
    bool in_place = false;            // its gradient and value are the first rows of the sync parameter's
    int64_t uses = 1, count = 0;
  };
  enum class What : uint8_t { Gradient, Value };
  struct InFlight {
    std::vector<std::pair<const FoldMessage*, Tensor>> arriving;
    std::vector<Tensor> leaving;
    Work work;
  };

  void count_contribution(RankContext& ctx, Member& member);
  Tensor held(size_t item, What what) const;
  Tensor owned(size_t item, What what) const;
  bool shares_memory(size_t item, What what) const;
  InFlight send(RankContext& ctx, const std::vector<FoldMessage>& messages, What what, bool fold) const;
  void receive(RankContext& ctx, const std::vector<FoldMessage>& messages, InFlight flight, What what,
               bool fold, bool add) const;
  void unfold(RankContext& ctx, What what);

  std::vector<Parameter*> parameters_;
  std::vector<Member> members_;
  ProcessGroup group_;
  FoldPlan plan_, value_plan_;
  std::vector<bool> summed_;
  DType gradient_dtype_;
  bool overlap_, uses_known_ = false, begun_ = false, folding_ = false;
  int64_t microbatches_ = 1, missing_ = 0;
  InFlight flight_;
};

}  // namespace megatron
