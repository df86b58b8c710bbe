#include "megatron/transformer/mlp.h"

#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {

Unary activation_kernel(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return Unary::Gelu;
    case Activation::gelu_tanh:
      return Unary::GeluTanh;
    case Activation::silu:
      return Unary::Silu;
    case Activation::relu:
      return Unary::Relu;
    case Activation::squared_relu:
      return Unary::SquaredRelu;
    case Activation::quick_gelu:
      return Unary::QuickGelu;
    case Activation::sigmoid:
      return Unary::Sigmoid;
    case Activation::tanh:
      return Unary::Tanh;
  }
  fail("mlp: unknown activation");
}

namespace {

LinearOptions fc1_options(const ModelConfig& config, const TensorParallel& tp) {
  LinearOptions options{.initializer = input_initializer(config),
                        .bias = config.add_mlp_bias.value_or(config.add_bias_linear)};
  options.overlap = tp.layer_overlaps.fc1;
  if (config.gated_linear_unit) options.parts = {config.ffn_hidden_size, config.ffn_hidden_size};
  return options;
}

LinearOptions fc2_options(const ModelConfig& config, const TensorParallel& tp) {
  return {.initializer = output_initializer(config),
          .bias = config.add_mlp_bias.value_or(config.add_bias_linear),
          .overlap = tp.layer_overlaps.fc2};
}

}  // namespace

Mlp::Mlp(const std::string& name, const ModelConfig& config, const TensorParallel& tp)
    : activation_{.kind = activation_kernel(config.activation_func),
                  .limit = config.activation_func_clamp_value.value_or(0),
                  .up_offset = config.glu_linear_offset,
                  .gated = config.gated_linear_unit},
      fc1_(name + ".linear_fc1", config.hidden_size, config.ffn_hidden_size * activation_.inputs(), tp,
           fc1_options(config, tp)),
      fc2_(name + ".linear_fc2", config.ffn_hidden_size, config.hidden_size, tp, fc2_options(config, tp)) {}

Tensor Mlp::forward(RankContext& ctx, const Tensor& x, const RecomputeFn& recompute_input) {
  return fc2_.forward_activated(ctx, activation_, !recompute_activation_,
                                fc1_.forward_activated(ctx, activation_, x, recompute_input));
}

void Mlp::visit(const ParameterVisitor& visitor) {
  fc1_.visit(visitor);
  fc2_.visit(visitor);
}

}  // namespace megatron
