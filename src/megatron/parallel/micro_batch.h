#pragma once

#include "megatron/nn/batch.h"
#include "megatron/nn/micro_batch.h"
#include "megatron/parallel/context/sequences.h"

namespace megatron {

// What a stage of the pipeline computes with.
struct StageNeeds {
  bool ids = true, labels = true;
  int64_t mtp_layers = 0;
  std::vector<std::string> extra = {};  // names of the tensors that it reads of Batch::extra
};

// How a micro-batch's losses count in the loss of the step.
struct LossFactors {
  double label = 1;    // of one label's loss; the loss scale of fp16 included
  double mtp = 0;      // of each MTP layer's mean loss beside the main one's
  double batches = 1;  // micro-batches of all replicas
};

TokenRows rows_of(const Batch& batch);

// Copies this rank's share of the tokens, and extra tensors whole, to the device; `seq` is left to the model.
// Weights are of `dtype`, fp32 or fp64. What comes from the host is copied on `copies`: another stream than
// the rank's is joined to it by the caller, before and after.
MicroBatch to_device(RankContext& ctx, const Batch& batch, const ContextParallel& context,
                     const StageNeeds& needs, const LossFactors& factors, DType dtype, const Stream& copies);

// Host memory to a new tensor, copied on `copies`.
Tensor sent_to_device(RankContext& ctx, const void* data, const Shape& shape, DType dtype,
                      const Stream& copies);

}  // namespace megatron
