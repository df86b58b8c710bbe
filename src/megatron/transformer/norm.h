#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/elastic_widths.h"
#include "megatron/nn/parameter.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// The residual stream between two parts of a layer: its value is hidden + update. The sum is left to the next
// norm, which makes it on the way.
struct Residual {
  Tensor hidden, update;  // update undefined: none is pending; hidden may be fp32 where the rest is narrower

  Tensor sum(RankContext& ctx) const;  // in hidden's dtype
};

// RMSNorm or LayerNorm as the model has it.
class Norm final : public Module {
 public:
  Norm(const std::string& name, int64_t size, const ModelConfig& config, const TensorParallel& tp);
  Tensor forward(RankContext& ctx, const Tensor& x);
  Tensor forward(RankContext& ctx, Residual& residual);  // leaves residual.hidden = the sum, nothing pending
  // The same over the active channels of the stream alone; null: over all.
  Tensor forward(RankContext& ctx, Residual& residual, const ElasticWidths* widths);
  void visit(const ParameterVisitor& visitor) override;

 private:
  NormKind kind_;
  double epsilon_;
  bool zero_centered_;
  Parameter weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace megatron
