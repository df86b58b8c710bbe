#pragma once

#include <functional>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/parallel/pipeline/step_plan.h"

namespace megatron {

// What one rank of the pipeline computes.
struct PipelineWork {
  // Runs a chunk on a micro-batch. `input` is empty on the model's first stage; the results are what the next
  // stage takes.
  std::function<std::vector<Tensor>(RankContext&, int chunk, int microbatch,
                                    const std::vector<Tensor>& input)>
      forward;
  // What the last stage makes of its results: the loss of this micro-batch, scaled as its gradient shall be,
  // or, forward only, whatever is wanted of it.
  std::function<Tensor(RankContext&, int microbatch, const std::vector<Tensor>& results)> last;
  // Shapes of what a stage takes from the one before.
  std::function<std::vector<Shape>(int stage, int microbatch)> input_shapes;
  DType dtype = DType::F32;
  // Messages travel while the ranks compute. Else each run of messages between two computations is one
  // batch, over before the next computation begins.
  bool overlap = true;
  // The steps are captured, not run: a message is not seen to end.
  bool captured = false;
};

// Runs a rank's steps of a schedule: one tape per (chunk, micro-batch) in flight. `group` is the pipeline
// group. Returns what `last` made of the micro-batches, in order, where this rank has the last stage. A rank
// that was given neighbouring stages passes tensors between them itself.
std::vector<Tensor> run_pipeline(RankContext& ctx, const StepPlan& plan, const PipelineWork& work,
                                 const ProcessGroup& group);

}  // namespace megatron
