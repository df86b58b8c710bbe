#pragma once

#include <functional>
#include <optional>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/device/graph.h"
#include "megatron/training/run/micro_batches.h"

namespace megatron {

// The tokens of a step on the device, and what else it reads of its own.
struct StepTokens {
  std::vector<Tensor> ids, labels;  // of each micro-batch
  Tensor step_offset;               // what the step adds to streams of random numbers
};

// Forward and backward passes as a CUDA graph: one call to the driver instead of hundreds of
// launches. What two steps in a row have in common is captured; steps of other shapes, or with other numbers
// of labels that count, run as always. With several ranks, a step is captured or replayed on all or none.
class CudaGraphStep {
 public:
  // `passes` reads its tokens from what it is given and leaves its results in the same tensors each time.
  using Passes = std::function<void(const StepTokens&)>;

  CudaGraphStep(int64_t steps_before, ProcessGroup world)
      : steps_before_(steps_before), world_(std::move(world)) {}

  // True where the passes were run, from the CUDA graph. The first steps, which plan and measure, are not.
  bool run(RankContext& ctx, const MicroBatches& batch, int64_t step, const Passes& passes);

 private:
  struct Kind {
    std::vector<TokenRows> rows;
    std::vector<int64_t> counted_labels;
    bool operator==(const Kind&) const = default;
  };
  static Kind kind_of(const MicroBatches& batch);
  bool all_can(bool own) const;

  int64_t steps_before_;
  ProcessGroup world_;
  Kind kind_;  // of the CUDA graph, or of the step before
  StepTokens tokens_;
  std::unique_ptr<CapturedOps> ops_;
  std::optional<CudaGraph> graph_;  // goes before what watches over its operations
};

}  // namespace megatron
