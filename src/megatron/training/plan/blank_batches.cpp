#include "megatron/training/plan/blank_batches.h"

#include <algorithm>

#include "megatron/datasets/images/mock_images.h"
#include "megatron/models/objectives/grpo_objective.h"
#include "megatron/training/setup/run_settings.h"

namespace megatron {
namespace {

Tensor host_ones(const Shape& shape) {
  auto values = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(shape.numel()), 1);
  return Tensor::wrap(values->data(), shape, DType::I64, kCpu, values);
}

// An image in every row, or as many tiles or packed images as it has room for beside a token of text.
void add_blank_images(const ModelConfig& model, bool packed, Batch& batch) {
  const PatchGrid grid = mock_grid(model, batch.length());
  const int64_t tokens = model.image_tokens(grid.patches());
  if (tokens < 1 || tokens >= batch.length()) return;
  const bool several = packed || (model.use_tiling && model.vision_tower == VisionTowerKind::clip);
  const int64_t each = several ? (batch.length() - 1) / tokens : 1, images = batch.rows * each;
  for (int64_t row = 0; row < batch.rows; ++row)
    std::fill_n(batch.ids.begin() + row * batch.length(), each * tokens, model.image_token_id);
  const Shape shape{images * grid.patches(), patch_features(model)};
  auto pixels = std::make_shared<std::vector<float>>(static_cast<size_t>(shape.numel()));
  batch.extra["pixels"] = Tensor::wrap(pixels->data(), shape, DType::F32, kCpu, pixels);
  auto grids = std::make_shared<std::vector<int64_t>>();
  for (int64_t image = 0; image < images; ++image)
    grids->insert(grids->end(), {grid.frames, grid.rows, grid.columns});
  batch.extra["image_grids"] = Tensor::wrap(grids->data(), {images, 3}, DType::I64, kCpu, grids);
}

// As if 64 tokens had been recorded of each.
void add_blank_recording(DType wide, Batch& batch) {
  const Shape shape{static_cast<int64_t>(batch.ids.size()), 64};
  auto log_probs = std::make_shared<std::vector<double>>(static_cast<size_t>(shape.numel()));
  batch.extra[kRecordedTokens] = host_ones(shape);
  batch.extra[kRecordedLogProbs] = Tensor::wrap(log_probs->data(), shape, wide, kCpu, log_probs);
}

}  // namespace

std::vector<Batch> blank_batches(const Config& config, int64_t count) {
  const ModelConfig& model = config.model;
  const int64_t rows = config.train.micro_batch_size, length = model.seq_length;
  Batch batch;
  batch.rows = rows;
  const int64_t own = model.model_type == ModelType::t5 ? model.decoder_seq_length : length;
  batch.ids.assign(static_cast<size_t>(rows * own), 0);
  batch.labels = batch.ids;
  if (config.rl.perform_rl_step)
    batch.values.assign(GrpoValues::count, std::vector<double>(batch.ids.size()));
  if (model.model_type == ModelType::bert) {
    batch.extra["token_types"] = batch.extra["padding_mask"] = host_ones({rows, length});
    batch.extra["is_random"] = host_ones({rows});
  }
  if (model.model_type == ModelType::t5)
    batch.extra["encoder_ids"] = batch.extra["encoder_mask"] = host_ones({rows, length});
  if (model.has_tower()) add_blank_images(model, config.dataset.packing_buffer_size > 0, batch);
  if (config.distill.learns_from_recording())
    add_blank_recording(accumulation_dtype(model_dtype(config)), batch);
  std::vector<Batch> batches(static_cast<size_t>(count), batch);
  for (int64_t i = 0; i < count; ++i) batches[static_cast<size_t>(i)].first = i * rows;
  return batches;
}

}  // namespace megatron
