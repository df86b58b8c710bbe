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
// All chunks of a pipeline rank; a tied output weight is the embedding's own where the rank holds both.
std::vector<std::unique_ptr<GptModel>> model_chunks(const Config& config, const PipelineShape& shape,
                                                    int pipeline_rank, const ModelParallel& parallel,
                                                    DType dtype);

}  // namespace megatron
