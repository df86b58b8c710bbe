#pragma once

#include "megatron/config/config.h"
#include "megatron/models/gpt.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// The pipeline that a configuration asks for, with this many micro-batches.
PipelineShape pipeline_shape(const Config& config, int64_t microbatches);

// Whether embedding and output layer live on two ranks, each of which then holds a copy of a tied weight.
bool splits_tied_weight(const PipelineShape& shape);

// What a pipeline rank's chunk holds of the model.
ModelSlice model_slice(const Config& config, const PipelineShape& shape, int pipeline_rank, int chunk);

}  // namespace megatron
