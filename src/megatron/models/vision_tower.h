#pragma once

#include "megatron/models/vision_config.h"
#include "megatron/transformer/layer.h"

namespace megatron {

// An image or video as patches: frames, rows and columns.
struct PatchGrid {
  int64_t frames = 1, rows = 1, columns = 1;

  int64_t patches() const { return frames * rows * columns; }
};

// From images to rows that stand for tokens of the language model. `pixels` are patches, one in a row: of
// Qwen's towers in blocks of cells that are merged, image by image, frame by frame; else row by row.
class VisionTower final : public Module {
 public:
  VisionTower(const VisionConfig& config, const ModelParallel& parallel, DType dtype);
  Tensor forward(RankContext& ctx, const Tensor& pixels, const std::vector<PatchGrid>& grids);
  void visit(const ParameterVisitor& visitor) override;

 private:
  // A matrix and its bias, whole on every rank.
  struct Dense {
    Dense(const std::string& name, const Shape& weight, double deviation, bool biased);
    Tensor forward(RankContext& ctx, const Tensor& x);
    void visit(const ParameterVisitor& visitor);

    Parameter weight;
    std::unique_ptr<Parameter> bias;
  };

  Tensor run_layers(RankContext& ctx, Tensor x, const SeqInfo& whole, const SeqInfo& windows);
  Tensor merge(RankContext& ctx, const Tensor& x);
  Tensor pool(RankContext& ctx, const Tensor& x, int64_t images);
  Tensor forward_qwen(RankContext& ctx, const Tensor& x, const std::vector<PatchGrid>& grids);
  Tensor forward_siglip(RankContext& ctx, const Tensor& x, int64_t images);

  VisionConfig config_;
  ModelConfig own_;  // of the layers
  DType dtype_;
  Dense patches_;
  std::unique_ptr<Parameter> positions_;  // SigLIP: one row for each place
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  Norm norm_;                           // before patches are merged; after the last layer
  std::unique_ptr<Dense> up_, down_;    // Qwen: of merged patches
  std::unique_ptr<Norm> pooled_norm_;   // Gemma 3
  std::unique_ptr<Parameter> project_;  // Gemma 3: [tower, model]
};

}  // namespace megatron
