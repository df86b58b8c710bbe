#pragma once

#include "megatron/models/gpt.h"
#include "megatron/models/vision_tower.h"

namespace megatron {

// Images that a text speaks of, in its order.
struct Images {
  Tensor pixels;  // patches, see VisionTower
  std::vector<PatchGrid> grids;
};

bool is_image_token(const VisionConfig& vision, int64_t id);
// What images change in how tokens (ids [batch · length] on the host) form sequences: positions and, in
// Gemma 3, what tokens see.
void add_images(RankContext& ctx, const ModelConfig& config, const VisionConfig& vision,
                std::span<const int64_t> ids, int64_t batch, const std::vector<PatchGrid>& grids, DType dtype,
                SeqInfo& seq);
// Embeddings of the text [tokens, hidden], with the tower's rows in place of those of image tokens.
Tensor join_images(RankContext& ctx, const Tensor& text, const Tensor& rows, const VisionConfig& vision,
                   std::span<const int64_t> ids);

// A decoder some of whose tokens are images: the tower's rows stand in place of their embeddings.
class VisionLanguageModel final : public Module {
 public:
  VisionLanguageModel(const ModelConfig& config, const VisionConfig& vision, const ModelParallel& parallel,
                      DType dtype);

  // ids [batch · length] on the host: where images stand decides positions and, in Gemma 3, what tokens see.
  Tensor forward(RankContext& ctx, const std::vector<int64_t>& ids, int64_t batch, const Images& images);
  GptModel& language() { return language_; }

  void visit(const ParameterVisitor& visitor) override;

 private:
  ModelConfig config_;
  VisionConfig vision_;
  DType dtype_;
  VisionTower tower_;
  GptModel language_;
};

// Three rows of positions for each token, [3, tokens]: text counts on, the tokens of an image count by frame,
// row and column from where it begins, and text goes on behind the larger side.
std::vector<int64_t> image_positions(std::span<const int64_t> ids, int64_t batch,
                                     const std::function<bool(int64_t)>& is_image,
                                     const std::vector<PatchGrid>& grids, int64_t merge);

}  // namespace megatron
