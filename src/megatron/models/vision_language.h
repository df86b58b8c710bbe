#pragma once

#include "megatron/models/gpt.h"
#include "megatron/models/vision_tower.h"

namespace megatron {

// Images that a text speaks of, in its order.
struct Images {
  Tensor pixels;  // patches, see VisionTower
  std::vector<PatchGrid> grids;
};

// A model's configuration with that of its tower in it.
ModelConfig with_tower(ModelConfig config, const VisionConfig& vision);

// What images change in how tokens (ids [batch · length] on the host) form sequences: positions and, in
// Gemma 3, what tokens see. In a text without images every token is text. Of the tokens a rank holds those of
// `held`; empty: all. `documents`: the lengths of what is packed into the rows; empty: a row is one.
void add_images(RankContext& ctx, const ModelConfig& config, std::span<const int64_t> ids, int64_t batch,
                const std::vector<PatchGrid>& grids, DType dtype, SeqInfo& seq,
                std::span<const int64_t> held = {}, std::span<const int64_t> documents = {});
// For each token of `held` (empty: of all) the row of these tokens or, behind them, of the tower, that is its
// embedding. An Error where the tower's rows are not as many as image tokens.
std::vector<int64_t> image_rows(const VisionConfig& vision, std::span<const int64_t> ids,
                                const std::vector<PatchGrid>& grids, std::span<const int64_t> held = {});
// Embeddings of a rank's text [tokens, hidden] with the tower's rows in place of those of image tokens.
// `sources` [all tokens]: of image_rows(); with sequence parallelism the rank takes its part of them.
Tensor join_images(RankContext& ctx, const Tensor& text, const Tensor& rows, const Tensor& sources,
                   const TensorParallel& tp);

// Images on the device, for the tokens `ids` of which this rank holds `held`, in a micro-batch's extra
// tensors.
void put_images(RankContext& ctx, const VisionConfig& vision, std::span<const int64_t> ids,
                std::span<const int64_t> held, const Images& images, MicroBatch& micro);
// The same of a training step's batch, whose images are on the host, in fp32 as they are there, copied on
// `copies`: see to_device(). Without any, one blank image that no token stands for, where `always`: ranks
// whose towers learn use them together.
void upload_images(RankContext& ctx, const VisionConfig& vision, const Batch& batch,
                   std::span<const int64_t> held, bool always, const Stream& copies, MicroBatch& micro);
// Casts the pixels that were uploaded to the tower's dtype.
void cast_pixels(RankContext& ctx, DType dtype, MicroBatch& micro);

// Whether a parameter is of the layers between a tower, of whichever kind, and the language model.
bool is_of_projection(std::string_view parameter);
// Which of a model's parameters learn, by its freeze settings.
void freeze_parts(const VisionConfig& vision, std::span<Parameter* const> parameters);

// Three rows of positions for each token, [3, tokens]: text counts on, the tokens of an image count by frame,
// row and column from where it begins, and text goes on behind the larger side. Each of `documents` begins
// anew; empty: each row.
std::vector<int64_t> image_positions(std::span<const int64_t> ids, int64_t batch,
                                     const std::function<bool(int64_t)>& is_image,
                                     const std::vector<PatchGrid>& grids, int64_t merge,
                                     std::span<const int64_t> documents = {});

}  // namespace megatron
