#pragma once

#include "megatron/models/gpt.h"
#include "megatron/models/vision_tower.h"

namespace megatron {

// A decoder some of whose tokens are images: the tower's rows stand in place of their embeddings.
class VisionLanguageModel final : public Module {
 public:
  VisionLanguageModel(const ModelConfig& config, const VisionConfig& vision, const ModelParallel& parallel,
                      DType dtype);

  struct Images {
    Tensor pixels;  // patches, see VisionTower
    std::vector<PatchGrid> grids;
  };
  // ids [batch · length] on the host: where images stand decides positions and, in Gemma 3, what tokens see.
  Tensor forward(RankContext& ctx, const std::vector<int64_t>& ids, int64_t batch, const Images& images);
  GptModel& language() { return language_; }

  void visit(const ParameterVisitor& visitor) override;

 private:
  SeqInfo sequences(RankContext& ctx, const std::vector<int64_t>& ids, int64_t batch,
                    const std::vector<PatchGrid>& grids) const;
  bool is_image(int64_t id) const;

  ModelConfig config_;
  VisionConfig vision_;
  DType dtype_;
  VisionTower tower_;
  GptModel language_;
};

// Three rows of positions for each token, [3, tokens]: text counts on, the tokens of an image count by frame,
// row and column from where it begins, and text goes on behind the larger side.
std::vector<int64_t> image_positions(const std::vector<int64_t>& ids, int64_t batch,
                                     const std::function<bool(int64_t)>& is_image,
                                     const std::vector<PatchGrid>& grids, int64_t merge);

}  // namespace megatron
