#pragma once

#include <span>

#include "megatron/nn/batch.h"
#include "megatron/nn/micro_batch.h"
#include "megatron/parallel/micro_batch.h"

namespace megatron {

// What a teacher was recorded to predict (kRecordedTokens) of the tokens `held`, or of all where that is
// empty, goes into `micro`; log-probabilities are of `wide`. Nothing where the batch has no recording.
void upload_recording(RankContext& ctx, const Batch& batch, std::span<const int64_t> held, DType wide,
                      const Stream& copies, MicroBatch& micro);

}  // namespace megatron
