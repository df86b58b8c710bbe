#include "megatron/models/vision_language.h"

#include <algorithm>

#include "megatron/ops/index.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"

namespace megatron {
namespace {

// Causal, but that the tokens of one image see each other: [batch, 1, length, length], added to scores.
Tensor image_bias(RankContext& ctx, const std::vector<bool>& image, int64_t batch, DType dtype) {
  const auto length = static_cast<int64_t>(image.size()) / batch;
  std::vector<double> values;
  for (int64_t row = 0; row < batch; ++row) {
    std::vector<int64_t> run(static_cast<size_t>(length), -1);  // which image a token belongs to
    for (int64_t i = 0; i < length; ++i) {
      if (!image[static_cast<size_t>(row * length + i)]) continue;
      const bool goes_on = i > 0 && run[static_cast<size_t>(i - 1)] >= 0;
      run[static_cast<size_t>(i)] = goes_on ? run[static_cast<size_t>(i - 1)] : i;
    }
    for (size_t i = 0; i < run.size(); ++i)
      for (size_t j = 0; j < run.size(); ++j)
        values.push_back(j <= i || (run[i] >= 0 && run[i] == run[j]) ? 0 : -1e30);
  }
  Tensor wide = ctx.from_vector(values, {batch, 1, length, length}), bias = ctx.empty(wide.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {wide, bias});
  return bias;
}

}  // namespace

std::vector<int64_t> image_positions(std::span<const int64_t> ids, int64_t batch,
                                     const std::function<bool(int64_t)>& is_image,
                                     const std::vector<PatchGrid>& grids, int64_t merge) {
  const size_t tokens = ids.size(), length = tokens / static_cast<size_t>(batch);
  std::vector<int64_t> positions(3 * tokens);
  auto put = [&](size_t token, int64_t frame, int64_t row, int64_t column) {
    positions[token] = frame;
    positions[tokens + token] = row;
    positions[2 * tokens + token] = column;
  };
  size_t next_image = 0;
  for (size_t begin = 0; begin < tokens; begin += length) {
    int64_t next = 0;
    for (size_t token = begin; token < begin + length;) {
      if (!is_image(ids[token])) {
        put(token++, next, next, next);
        ++next;
        continue;
      }
      require(next_image < grids.size(), "images: the text has more of them than the {} given", grids.size());
      const PatchGrid& grid = grids[next_image++];
      const int64_t rows = grid.rows / merge, columns = grid.columns / merge;
      for (int64_t i = 0; i < grid.frames * rows * columns; ++i, ++token) {
        require(token < begin + length && is_image(ids[token]),
                "images: image {} has {} x {} x {} tokens, but the text fewer", next_image - 1, grid.frames,
                rows, columns);
        put(token, next + i / (rows * columns), next + i / columns % rows, next + i % columns);
      }
      next += std::max(rows, columns);
    }
  }
  return positions;
}

VisionLanguageModel::VisionLanguageModel(const ModelConfig& config, const VisionConfig& vision,
                                         const ModelParallel& parallel, DType dtype)
    : config_(config),
      vision_(vision),
      dtype_(dtype),
      tower_(vision, parallel, dtype),
      language_(config, ModelSlice{.first_layer = 0, .layers = config.num_layers}, parallel, dtype) {}

bool is_image_token(const VisionConfig& vision, int64_t id) {
  return id == vision.image_token_id || id == vision.video_token_id;
}

void add_images(RankContext& ctx, const ModelConfig& config, const VisionConfig& vision,
                std::span<const int64_t> ids, int64_t batch, const std::vector<PatchGrid>& grids, DType dtype,
                SeqInfo& seq) {
  const auto tokens = static_cast<int64_t>(ids.size());
  if (config.position_embedding_type == PositionEmbedding::mrope) {
    require(config.mrope_section.size() == 3, "images: mrope_section must have three numbers");
    const auto positions = image_positions(
        ids, batch, [&](int64_t id) { return is_image_token(vision, id); }, grids, vision.spatial_merge_size);
    const auto& s = config.mrope_section;
    auto rotation = ops::rope_tables(ctx, ctx.from_vector(positions, {3, tokens}),
                                     ops::rope_frequencies(config.kv_channels, config.rotary_base), dtype,
                                     false, {s[0], s[1], s[2]});
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  if (vision.bidirectional_images) {
    std::vector<bool> image;
    for (int64_t id : ids) image.push_back(is_image_token(vision, id));
    seq.attention_bias = image_bias(ctx, image, batch, dtype);
  }
}

Tensor join_images(RankContext& ctx, const Tensor& text, const Tensor& rows, const VisionConfig& vision,
                   std::span<const int64_t> ids) {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<int64_t> source;  // a row of the text, or behind all of them one of the tower
  int64_t next = tokens;
  for (int64_t i = 0; i < tokens; ++i)
    source.push_back(is_image_token(vision, ids[static_cast<size_t>(i)]) ? next++ : i);
  require(next - tokens == rows.size(0), "images: the tower gives {} rows for {} tokens of the text",
          rows.size(0), next - tokens);
  return ops::gather_rows(ctx, ops::concat(ctx, std::vector{text, rows}, 0),
                          ctx.from_vector(source, {tokens}));
}

Tensor VisionLanguageModel::forward(RankContext& ctx, const std::vector<int64_t>& ids, int64_t batch,
                                    const Images& images) {
  const auto tokens = static_cast<int64_t>(ids.size());
  SeqInfo seq = language_.sequences(ctx, batch, tokens / batch);
  add_images(ctx, config_, vision_, ids, batch, images.grids, dtype_, seq);
  const Tensor rows = tower_.forward(ctx, images.pixels, images.grids);
  const Tensor text = language_.embed(ctx, ctx.from_vector(ids, {tokens}), seq);
  return language_.forward_from(ctx, join_images(ctx, text, rows, vision_, ids), seq);
}

void VisionLanguageModel::visit(const ParameterVisitor& visitor) {
  tower_.visit(visitor);
  language_.visit(visitor);
}

}  // namespace megatron
