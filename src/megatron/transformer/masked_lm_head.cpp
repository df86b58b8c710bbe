#include "megatron/transformer/masked_lm_head.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/linear.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/mlp.h"

namespace megatron {

MaskedLmHead::MaskedLmHead(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : activation_(activation_kernel(config.activation_func)),
      weight_(name + ".dense.weight", ShardSpec::whole({config.hidden_size, config.hidden_size}),
              input_initializer(config)),
      bias_(name + ".dense.bias", ShardSpec::whole({config.hidden_size}), Initializer::constant(0)),
      norm_(name + ".layer_norm", config.hidden_size, config, tp) {
  weight_.partial_over_tp = bias_.partial_over_tp = tp.splits_tokens();
}

Tensor MaskedLmHead::forward(RankContext& ctx, const Tensor& x) {
  return norm_.forward(
      ctx, ops::activation(ctx, activation_, ops::linear(ctx, x, weight_.get(ctx)), bias_.get(ctx)));
}

void MaskedLmHead::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  visitor(bias_);
  norm_.visit(visitor);
}

}  // namespace megatron
