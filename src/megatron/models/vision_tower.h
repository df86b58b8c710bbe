#pragma once

#include "megatron/models/vision_config.h"
#include "megatron/nn/batch.h"
#include "megatron/nn/parameter_unit.h"
#include "megatron/transformer/layer.h"

namespace megatron {

// From images to rows that stand for tokens of the language model. `pixels` are patches, one in a row: of
// Qwen's towers in blocks of cells that are merged, image by image, frame by frame; else row by row.
class VisionTower final : public Module {
 public:
  VisionTower(const VisionConfig& config, const ModelParallel& parallel, DType dtype);
  Tensor forward(RankContext& ctx, const Tensor& pixels, const std::vector<PatchGrid>& grids);
  void visit(const ParameterVisitor& visitor) override;
  std::vector<ParameterUnit*> units();  // in order of use
  bool learns();                        // whether any of its parameters does
  // Its layers keep what the first of a stage's does: nothing but their inputs, or all but some modules.
  void set_activation_plan(const ActivationPlan& plan);

 private:
  // A matrix and its bias, whole on every rank.
  struct Dense {
    Dense(const std::string& name, const Shape& weight, double deviation, bool biased);
    Tensor forward(RankContext& ctx, const Tensor& x);
    void visit(const ParameterVisitor& visitor);

    Parameter weight;
    std::unique_ptr<Parameter> bias;
  };

  void make_places(int64_t places);
  void make_projector(const std::string& name, int64_t input, int64_t inner);
  void make_units();
  Residual run_layers(RankContext& ctx, Tensor x, const SeqInfo& whole, const SeqInfo& windows);
  Tensor merge(RankContext& ctx, const Tensor& x);
  Tensor project(RankContext& ctx, const Tensor& x);  // a norm, two layers, an activation between
  Tensor shuffle(RankContext& ctx, const Tensor& x, const std::vector<PatchGrid>& grids);
  Tensor pool(RankContext& ctx, const Tensor& x, int64_t images);
  Tensor forward_qwen(RankContext& ctx, const Tensor& pixels, const std::vector<PatchGrid>& grids);
  Tensor forward_siglip(RankContext& ctx, const Tensor& pixels, int64_t images);
  Tensor forward_clip(RankContext& ctx, const Tensor& pixels, const std::vector<PatchGrid>& grids);
  Tensor add_positions(RankContext& ctx, const Tensor& x, int64_t images);
  Tensor add_interpolated_positions(RankContext& ctx, const Tensor& x, const std::vector<PatchGrid>& grids);

  VisionConfig config_;
  ModelConfig own_;  // of the layers
  DType dtype_;
  Dense patches_;
  std::unique_ptr<Parameter> class_token_;  // CLIP
  std::unique_ptr<Parameter> positions_;    // SigLIP, CLIP: one row for each place
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  Norm norm_;  // before patches are merged; after the last layer; CLIP: before the first
  std::unique_ptr<Dense> up_, down_;      // Qwen: of merged patches; CLIP: of every one
  std::unique_ptr<Norm> projector_norm_;  // CLIP
  std::unique_ptr<Norm> pooled_norm_;     // Gemma 3
  std::unique_ptr<Parameter> project_;    // Gemma 3: [tower, model]
  std::unique_ptr<ParameterUnit> begin_, end_;
  std::vector<std::unique_ptr<ParameterUnit>> layer_units_;
  bool recomputes_layers_ = false;
};

}  // namespace megatron
