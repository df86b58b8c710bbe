#pragma once

#include "megatron/config/config.h"
#include "megatron/models/gpt.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// The pipeline that a configuration asks for, with this many micro-batches.
PipelineShape pipeline_shape(const Config& config, int64_t microbatches);

// The pipeline ranks that hold the word embeddings: as such, for MTP layers, or as a tied output
// weight.
std::vector<int> embedding_holders(const Config& config, const PipelineShape& shape);
// The same where they are others than the first and the last: what ParallelSizes wants to know.
std::vector<int> embedding_stages(const Config& config);

// What a pipeline rank's chunk holds of the model.
ModelSlice model_slice(const Config& config, const PipelineShape& shape, int pipeline_rank, int chunk);
// Which stage has the MTP layers; -1 where the model has none.
int mtp_stage(const Config& config, const PipelineShape& shape);
// All chunks of a pipeline rank; a tied output weight is the embedding's own where the rank holds both.
std::vector<std::unique_ptr<GptModel>> model_chunks(const Config& config, const PipelineShape& shape,
                                                    int pipeline_rank, const ModelParallel& parallel,
                                                    DType dtype);

}  // namespace megatron
