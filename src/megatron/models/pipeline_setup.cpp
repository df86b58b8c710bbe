#include "megatron/models/pipeline_setup.h"

#include <algorithm>

#include "megatron/models/elastic/elastic_spec.h"
#include "megatron/models/whole_model.h"
#include "megatron/parallel/pipeline/layer_split.h"
#include "megatron/parallel/pipeline/stage_layout.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

PipelineKind kind_of(PipelineSchedule schedule, int pp, int vpp) {
  switch (schedule) {
    case PipelineSchedule::automatic:
      break;
    case PipelineSchedule::gpipe:
      return PipelineKind::gpipe;
    case PipelineSchedule::one_f_one_b:
      return PipelineKind::one_f_one_b;
    case PipelineSchedule::interleaved:
      return PipelineKind::interleaved;
    case PipelineSchedule::zb_h1:
      return PipelineKind::zb_h1;
    case PipelineSchedule::zb_v:
      return PipelineKind::zb_v;
  }
  if (pp == 1) return PipelineKind::none;
  return vpp > 1 ? PipelineKind::interleaved : PipelineKind::one_f_one_b;
}

}  // namespace

PipelineShape pipeline_shape(const Config& config, int64_t microbatches) {
  const ParallelConfig& parallel = config.parallel;
  PipelineShape shape;
  shape.pp = static_cast<int>(parallel.pipeline_model_parallel_size);
  shape.vpp = static_cast<int>(std::max<int64_t>(1, parallel.virtual_pipeline_model_parallel_size));
  shape.microbatches = static_cast<int>(microbatches);
  shape.kind = kind_of(parallel.pipeline_schedule, shape.pp, shape.vpp);
  if (shape.kind == PipelineKind::interleaved)
    shape.group = static_cast<int>(parallel.microbatch_group_size_per_vp_stage.value_or(0));
  shape.delay_weights = config.model.delay_wgrad_compute || fills_exchanges(config.model);
  return shape;
}

int mtp_stage(const Config& config, const PipelineShape& shape) {
  if (config.model.mtp_num_layers == 0) return -1;
  const std::string& text = config.parallel.pipeline_model_parallel_layout;
  if (text.empty()) return shape.pp * shape.vpp - 1;
  const std::vector<StageLayers> stages = parse_pipeline_layout(text);
  const auto found = std::find_if(stages.begin(), stages.end(), [](const StageLayers& stage) {
    return std::find(stage.begin(), stage.end(), LayerKind::mtp) != stage.end();
  });
  return static_cast<int>(std::min(found, stages.end() - 1) - stages.begin());
}

std::vector<int> embedding_holders(const Config& config, const PipelineShape& shape) {
  std::vector<int> ranks;
  const auto add = [&](int stage) {
    const int rank = chunk_at(shape, stage).rank;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  add(0);
  if (config.model.mtp_num_layers > 0) add(mtp_stage(config, shape));
  if (config.model.share_embeddings_and_output_weights) add(shape.pp * shape.vpp - 1);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> embedding_stages(const Config& config) {
  const PipelineShape shape = pipeline_shape(config, 1);
  const int stage = mtp_stage(config, shape);
  if (stage < 0 || stage == shape.pp * shape.vpp - 1) return {};
  return embedding_holders(config, shape);
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
            layout.count(LayerKind::loss, rank, virtual_stage) > 0,
            layout.count(LayerKind::mtp, rank, virtual_stage) > 0};
  }
  const int64_t layers = is_encoder_decoder(config.model)
                             ? config.model.encoder_num_layers + config.model.decoder_num_layers
                             : config.model.num_layers;
  LayerSplit split{.num_layers = static_cast<int>(layers), .pp = shape.pp, .vpp = shape.vpp};
  if (parallel.num_layers_in_first_pipeline_stage)
    split.first_stage_layers = static_cast<int>(parallel.num_layers_in_first_pipeline_stage);
  if (parallel.num_layers_in_last_pipeline_stage)
    split.last_stage_layers = static_cast<int>(parallel.num_layers_in_last_pipeline_stage);
  split.account_for_embedding = parallel.account_for_embedding_in_pipeline_split;
  split.account_for_loss = parallel.account_for_loss_in_pipeline_split;
  LayerRange range = stage_layers(split, rank, virtual_stage);
  const bool last = stage == stages - 1;
  return {range.first, range.count, stage == 0, last, last};
}

std::vector<std::unique_ptr<GptModel>> model_chunks(const Config& config, const PipelineShape& shape,
                                                    int pipeline_rank, const ModelParallel& parallel,
                                                    DType dtype) {
  std::vector<std::unique_ptr<GptModel>> chunks;
  const std::shared_ptr<const ElasticSpec> elastic = elastic_spec(config);
  for (int chunk = 0; chunk < shape.vpp; ++chunk)
    chunks.push_back(
        std::make_unique<GptModel>(config.model, model_slice(config, shape, pipeline_rank, chunk), parallel,
                                   dtype, chunk > 0 ? chunks[0]->embedding() : nullptr, elastic));
  return chunks;
}

}  // namespace megatron
