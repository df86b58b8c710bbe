#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/device/graph.h"
#include "megatron/parallel/micro_batch.h"

namespace megatron {

// Forward and backward passes as a CUDA graph: one call to the driver instead of hundreds of launches. Steps
// whose micro-batches have the same shapes replay it, whatever their tokens, labels and weights are; others
// run as always. With several ranks, a step is captured or replayed on all or none.
class CudaGraphStep {
 public:
  // `upload` copies the micro-batches of a step to the device. `passes` reads them from the tensors that it
  // is given and leaves its results in the same tensors each time.
  using Upload = std::function<std::vector<MicroBatch>()>;
  using Passes = std::function<void(std::span<const MicroBatch>)>;

  CudaGraphStep(int64_t steps_before, ProcessGroup world)
      : steps_before_(steps_before), world_(std::move(world)) {}

  // True where the passes were run, from the graph. The first steps, which plan and measure, are not.
  bool run(RankContext& ctx, std::span<const Batch> batches, const Upload& upload, const Passes& passes);

 private:
  // The shape of a micro-batch.
  struct Kind {
    TokenRows rows;
    bool weighted, replays_experts;
    int64_t first;
    bool operator==(const Kind&) const = default;
  };
  bool all_can(bool own) const;

  int64_t steps_before_;
  ProcessGroup world_;
  std::vector<Kind> kinds_;         // of the graph, or of the step before
  std::vector<MicroBatch> inputs_;  // what the graph reads
  std::unique_ptr<CapturedOps> ops_;
  std::optional<CudaGraph> graph_;  // goes before what watches over its operations
};

}  // namespace megatron
