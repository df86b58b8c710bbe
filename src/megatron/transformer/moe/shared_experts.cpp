#include "megatron/transformer/moe/shared_experts.h"

#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/transformer/initializers.h"

namespace megatron {
namespace {

ModelConfig as_mlp(ModelConfig config) {
  config.ffn_hidden_size = config.moe_shared_expert_intermediate_size;
  config.add_mlp_bias = false;
  return config;
}

}  // namespace

SharedExperts::SharedExperts(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : mlp_(name, as_mlp(config), tp) {
  if (!config.moe_shared_expert_gate) return;
  gate_ = std::make_unique<Parameter>(name + ".gate_weight", ShardSpec::whole({1, config.hidden_size}),
                                      input_initializer(config));
  gate_->partial_over_tp = tp.splits_tokens();
}

Tensor SharedExperts::forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  Tensor y = mlp_.forward(ctx, x, recompute_input);
  if (!gate_) return y;
  return ops::mul(ctx, y, ops::activation(ctx, Unary::Sigmoid, ops::linear(ctx, x, gate_->get(ctx))));
}

void SharedExperts::visit(const ParameterVisitor& visitor) {
  mlp_.visit(visitor);
  if (gate_) visitor(*gate_);
}

}  // namespace megatron
