#pragma once

#include "megatron/config/config.h"
#include "megatron/models/gpt.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// The pipeline that a configuration asks for, with this many micro-batches.
PipelineShape pipeline_shape(const Config& config, int64_t microbatches);

// What a pipeline rank's chunk holds of the model.
ModelSlice model_slice(const Config& config, const PipelineShape& shape, int pipeline_rank, int chunk);

}  // namespace megatron
