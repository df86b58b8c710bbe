#pragma once

#include <functional>
#include <span>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/process_group.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// What one rank of the pipeline computes.
struct PipelineWork {
  // Runs a chunk on a micro-batch. `input` is undefined on the model's first stage; the result is what the
  // next stage takes or, on the last, the loss of this micro-batch, scaled as its gradient shall be.
  std::function<Tensor(RankContext&, int chunk, int microbatch, const Tensor& input)> forward;
  // Of what a stage takes from the one before; none: it is sent ahead of each activation.
  std::function<Shape(int stage)> input_shape;
  DType dtype = DType::F32;
  // Messages travel while the ranks compute. Else each run of messages between two computations is one
  // exchange, over before the next computation begins.
  bool overlap = true;
  // The steps are captured, not run: a message is not seen to end.
  bool captured = false;
};

// Runs this rank's steps of a schedule: one tape per (chunk, micro-batch) in flight. `group` is the pipeline
// group. Returns the losses of the micro-batches, in order, where this rank has the last stage. A rank that
// was given neighbouring stages passes tensors between them itself.
std::vector<Tensor> run_pipeline(RankContext& ctx, const PipelineShape& shape, const PipelineWork& work,
                                 const ProcessGroup& group);

}  // namespace megatron
