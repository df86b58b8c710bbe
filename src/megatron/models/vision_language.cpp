#include "megatron/models/vision_language.h"

#include <algorithm>

#include "megatron/nn/causal_mask.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/index.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/micro_batch.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// Causal, but that the tokens of one image see each other: [batch, 1, length, length], added to scores.
Tensor image_bias(RankContext& ctx, const std::vector<bool>& image, int64_t batch, DType dtype) {
  const auto length = static_cast<int64_t>(image.size()) / batch;
  std::vector<int64_t> run(image.size());  // which image a token belongs to; text is alone
  for (int64_t i = 0; i < std::ssize(run); ++i) {
    const auto at = static_cast<size_t>(i);
    const bool goes_on = image[at] && i % length > 0 && image[at - 1];
    run[at] = goes_on ? run[at - 1] : i;
  }
  const Tensor runs = ctx.from_vector(run, {batch, length});
  const Tensor together = ops::compare(ctx, Comparison::Equal, runs.view({batch, 1, 1, length}),
                                       runs.view({batch, 1, length, 1}));
  const Tensor seen = ctx.zeros({1}, dtype);
  return ops::where(ctx, causal_mask(ctx, length), seen,
                    ops::where(ctx, together, seen, ctx.full({1}, dtype, -1e30)));
}

// Columns of a matrix [3, count].
std::vector<int64_t> columns_of(const std::vector<int64_t>& matrix, int64_t count,
                                std::span<const int64_t> columns) {
  std::vector<int64_t> result;
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t column : columns) result.push_back(matrix[static_cast<size_t>(row * count + column)]);
  return result;
}

}  // namespace

ModelConfig with_tower(ModelConfig config, const VisionConfig& vision) {
  static_cast<VisionConfig&>(config) = vision;
  return config;
}

std::vector<int64_t> image_positions(std::span<const int64_t> ids, int64_t batch,
                                     const std::function<bool(int64_t)>& is_image,
                                     const std::vector<PatchGrid>& grids, int64_t merge,
                                     std::span<const int64_t> documents) {
  const size_t tokens = ids.size();
  const std::vector<int64_t> rows_alike(static_cast<size_t>(batch), std::ssize(ids) / batch);
  if (documents.empty()) documents = rows_alike;
  std::vector<int64_t> positions(3 * tokens);
  auto put = [&](size_t token, int64_t frame, int64_t row, int64_t column) {
    positions[token] = frame;
    positions[tokens + token] = row;
    positions[2 * tokens + token] = column;
  };
  size_t next_image = 0;
  size_t token = 0, end = 0;
  for (int64_t length : documents) {
    end += static_cast<size_t>(length);
    for (int64_t next = 0; token < end;) {
      if (!is_image(ids[token])) {
        put(token++, next, next, next);
        ++next;
        continue;
      }
      require(next_image < grids.size(), "images: the text has more of them than the {} given", grids.size());
      const PatchGrid& grid = grids[next_image++];
      const int64_t rows = grid.rows / merge, columns = grid.columns / merge;
      for (int64_t i = 0; i < grid.frames * rows * columns; ++i, ++token) {
        require(token < end && is_image(ids[token]),
                "images: image {} has {} x {} x {} tokens, but the text fewer", next_image - 1, grid.frames,
                rows, columns);
        put(token, next + i / (rows * columns), next + i / columns % rows, next + i % columns);
      }
      next += std::max(rows, columns);
    }
  }
  return positions;
}

void add_images(RankContext& ctx, const ModelConfig& config, std::span<const int64_t> ids, int64_t batch,
                const std::vector<PatchGrid>& grids, DType dtype, SeqInfo& seq, std::span<const int64_t> held,
                std::span<const int64_t> documents) {
  const auto tokens = static_cast<int64_t>(ids.size());
  if (config.position_embedding_type == PositionEmbedding::mrope) {
    require(config.mrope_section.size() == 3, "images: mrope_section must have three numbers");
    std::vector<int64_t> positions = image_positions(
        ids, batch, [&](int64_t id) { return !grids.empty() && config.is_image_token(id); }, grids,
        config.vision_spatial_merge_size, documents);
    if (!held.empty()) positions = columns_of(positions, tokens, held);
    const auto& s = config.mrope_section;
    const auto own = static_cast<int64_t>(positions.size()) / 3;
    auto rotation = ops::rope_tables(ctx, ctx.from_vector(positions, {3, own}),
                                     ops::rope_frequencies(config.kv_channels, config.rotary_base), dtype,
                                     false, {s[0], s[1], s[2]});
    seq.rope_cos = rotation.cos;
    seq.rope_sin = rotation.sin;
  }
  if (config.vision_bidirectional) {
    require(held.empty(), "images: tokens that see each other cannot be split over ranks");
    require(documents.empty(), "images: tokens that see each other cannot be packed");
    std::vector<bool> image;
    for (int64_t id : ids) image.push_back(!grids.empty() && config.is_image_token(id));
    seq.attention_bias = image_bias(ctx, image, batch, dtype);
  }
}

std::vector<int64_t> image_rows(const VisionConfig& vision, std::span<const int64_t> ids,
                                const std::vector<PatchGrid>& grids, std::span<const int64_t> held) {
  const auto tokens = static_cast<int64_t>(ids.size()),
             own = held.empty() ? tokens : static_cast<int64_t>(held.size());
  std::vector<int64_t> row(ids.size(), -1);  // of the tower
  int64_t next = 0, given = 0;
  for (int64_t i = 0; i < tokens; ++i)
    if (!grids.empty() && vision.is_image_token(ids[static_cast<size_t>(i)]))
      row[static_cast<size_t>(i)] = next++;
  for (const PatchGrid& grid : grids) given += vision.image_tokens(grid.patches());
  require(next == given, "images: the tower gives {} rows for {} tokens of the text", given, next);
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < own; ++i) {
    const int64_t at = row[static_cast<size_t>(held.empty() ? i : held[static_cast<size_t>(i)])];
    sources.push_back(at < 0 ? i : own + at);
  }
  return sources;
}

Tensor join_images(RankContext& ctx, const Tensor& text, const Tensor& rows, const Tensor& sources,
                   const TensorParallel& tp) {
  if (!tp.splits_tokens())
    return ops::gather_rows(ctx, ops::concat(ctx, std::vector{text, rows}, 0), sources);
  // A rank holds a run of the tokens, and each has a part of the gradient of the tower's rows.
  const int64_t own = text.size(0), begin = own * tp.rank();
  TensorParallel whole = tp;
  whole.sequence_parallel = false;
  const Tensor shared = enter_tensor_parallel(ctx, rows, whole);
  const Tensor all = ops::concat(ctx, std::vector{text, shared}, 0);
  // A text token's row is its own; those of the tower stand behind this rank's text, not behind all of it.
  const int64_t tokens = sources.size(0);
  const Tensor run = sources.slice(0, begin, begin + own);
  Tensor mine = ctx.empty({own}, DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {run, mine});
  std::vector<double> in_turn;
  for (int64_t i = 0; i < own; ++i) in_turn.push_back(static_cast<double>(i));
  const Tensor of_tower = ops::sub(ctx, mine, ctx.full({1}, DType::F64, static_cast<double>(tokens - own)));
  const Tensor is_text =
      ops::compare(ctx, Comparison::Less, run, ctx.full({1}, DType::I64, static_cast<double>(tokens)));
  Tensor ids = ctx.empty({own}, DType::I64);
  ctx.kernels->copy(ctx.kernel_context(),
                    {ops::where(ctx, is_text, ctx.from_vector(in_turn, {own}), of_tower), ids});
  return ops::gather_rows(ctx, all, ids);
}

namespace {

// As small as the tower reads.
Images blank_images(RankContext& ctx, const VisionConfig& vision, DType dtype) {
  const int64_t side = vision.is_qwen() ? vision.vision_spatial_merge_size
                                        : vision.vision_image_size / vision.vision_patch_size;
  const int64_t frames = vision.is_qwen() ? vision.vision_temporal_patch_size : 1,
                features =
                    vision.vision_in_channels * frames * vision.vision_patch_size * vision.vision_patch_size;
  return {ctx.zeros({side * side, features}, dtype), {{1, side, side}}};
}

}  // namespace

void put_images(RankContext& ctx, const VisionConfig& vision, std::span<const int64_t> ids,
                std::span<const int64_t> held, const Images& images, MicroBatch& micro) {
  const std::vector<int64_t> sources = image_rows(vision, ids, images.grids, held);
  micro.extra["image_rows"] = ctx.from_vector(sources, {static_cast<int64_t>(sources.size())});
  micro.extra["pixels"] = images.pixels;
  micro.image_grids = images.grids;
}

void upload_images(RankContext& ctx, const VisionConfig& vision, const Batch& batch,
                   std::span<const int64_t> held, bool always, const Stream& copies, MicroBatch& micro) {
  const std::vector<PatchGrid> grids = batch.image_grids();
  if (grids.empty() && !always) return;
  const std::vector<int64_t> sources = image_rows(vision, batch.ids, grids, held);
  micro.extra["image_rows"] = sent_to_device(ctx, sources.data(), {std::ssize(sources)}, DType::I64, copies);
  if (grids.empty()) {
    const Images blank = blank_images(ctx, vision, DType::F32);
    micro.image_grids = blank.grids;
    micro.extra["pixels"] = blank.pixels;
    return;
  }
  const Tensor& host = batch.extra.at("pixels");
  micro.extra["pixels"] = sent_to_device(ctx, host.raw(), host.shape(), DType::F32, copies);
  micro.image_grids = grids;
}

void cast_pixels(RankContext& ctx, DType dtype, MicroBatch& micro) {
  const auto found = micro.extra.find("pixels");
  if (found == micro.extra.end() || found->second.dtype() == dtype) return;
  Tensor pixels = ctx.empty(found->second.shape(), dtype);
  ctx.kernels->copy(ctx.kernel_context(), {found->second, pixels});
  found->second = pixels;
}

bool is_of_projection(std::string_view parameter) {
  return parameter.starts_with("vision_model.merger.") || parameter.starts_with("multi_modal_projector.") ||
         parameter.starts_with("vision_projection.");
}

void freeze_parts(const VisionConfig& vision, std::span<Parameter* const> parameters) {
  for (Parameter* parameter : parameters) {
    const std::string_view name = parameter->name;
    const bool frozen = is_of_projection(name)              ? vision.freeze_vision_projection
                        : name.starts_with("vision_model.") ? vision.freeze_vision_model
                                                            : vision.freeze_language_model;
    if (frozen) parameter->trainable = false;
  }
}

}  // namespace megatron
