#include "megatron/transformer/moe/latent_projection.h"

#include "megatron/ops/linear.h"

namespace megatron {

LatentProjection::LatentProjection(const std::string& name, int64_t in, int64_t out, Initializer initializer,
                                   const ModelConfig& config, const TensorParallel& tp)
    : weight_(name + ".weight", ShardSpec::whole({out, in}), initializer) {
  if (config.add_mlp_bias.value_or(config.add_bias_linear))
    bias_ = std::make_unique<Parameter>(name + ".bias", ShardSpec::whole({out}), Initializer::constant(0));
  visit([&](Parameter& parameter) { parameter.partial_over_tp = tp.size() > 1; });
}

Tensor LatentProjection::forward(RankContext& ctx, const Tensor& x) {
  return ops::linear(ctx, x, weight_.get(ctx), bias_ ? bias_->get(ctx) : Weight{});
}

void LatentProjection::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (bias_) visitor(*bias_);
}

}  // namespace megatron
