#include "megatron/training/pipeline_setup.h"

#include "megatron/parallel/pipeline/layer_split.h"
#include "megatron/parallel/pipeline/stage_layout.h"

namespace megatron {

PipelineShape pipeline_shape(const Config& config, int64_t microbatches) {
  const ParallelConfig& parallel = config.parallel;
  PipelineShape shape;
  shape.pp = static_cast<int>(parallel.pipeline_model_parallel_size);
  shape.vpp = static_cast<int>(std::max<int64_t>(1, parallel.virtual_pipeline_model_parallel_size));
  shape.microbatches = static_cast<int>(microbatches);
  shape.group = static_cast<int>(parallel.microbatch_group_size_per_vp_stage.value_or(0));
  if (shape.pp > 1) shape.kind = shape.vpp > 1 ? PipelineKind::interleaved : PipelineKind::one_f_one_b;
  return shape;
}

ModelSlice model_slice(const Config& config, const PipelineShape& shape, int pipeline_rank, int chunk) {
  const ParallelConfig& parallel = config.parallel;
  int stage = model_stage(shape, pipeline_rank, chunk), stages = shape.pp * shape.vpp;
  int rank = stage % shape.pp, virtual_stage = stage / shape.pp;
  if (!parallel.pipeline_model_parallel_layout.empty()) {
    StageLayout layout = StageLayout::parse(parallel.pipeline_model_parallel_layout, shape.pp);
    return {layout.offset(LayerKind::decoder, rank, virtual_stage),
            layout.count(LayerKind::decoder, rank, virtual_stage),
            layout.count(LayerKind::embedding, rank, virtual_stage) > 0,
            layout.count(LayerKind::loss, rank, virtual_stage) > 0};
  }
  LayerSplit split{.num_layers = static_cast<int>(config.model.num_layers), .pp = shape.pp, .vpp = shape.vpp};
  if (parallel.num_layers_in_first_pipeline_stage)
    split.first_stage_layers = static_cast<int>(parallel.num_layers_in_first_pipeline_stage);
  if (parallel.num_layers_in_last_pipeline_stage)
    split.last_stage_layers = static_cast<int>(parallel.num_layers_in_last_pipeline_stage);
  split.account_for_embedding = parallel.account_for_embedding_in_pipeline_split;
  split.account_for_loss = parallel.account_for_loss_in_pipeline_split;
  LayerRange range = stage_layers(split, rank, virtual_stage);
  return {range.first, range.count, stage == 0, stage == stages - 1};
}

}  // namespace megatron
