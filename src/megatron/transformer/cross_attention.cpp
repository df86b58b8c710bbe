#include "megatron/transformer/cross_attention.h"

#include "megatron/ops/attention.h"
#include "megatron/ops/shape.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

LinearOptions input_options(const ModelConfig& config) {
  return {.initializer = input_initializer(config),
          .bias = config.add_bias_linear || config.add_qkv_bias,
          .parts = {}};
}

}  // namespace

CrossAttention::CrossAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                               const ModelParallel& parallel)
    : heads_(layer, config, parallel.tensor),
      channels_(config.kv_channels),
      query_(name + ".linear_q", config.hidden_size, config.num_attention_heads * channels_, parallel.tensor,
             input_options(config)),
      key_value_(name + ".linear_kv", config.hidden_size, 2 * config.num_attention_heads * channels_,
                 parallel.tensor, input_options(config)),
      projection_(name + ".linear_proj", config.num_attention_heads * channels_, config.hidden_size,
                  parallel.tensor,
                  {.initializer = output_initializer(config),
                   .bias = config.add_attention_output_bias.value_or(config.add_bias_linear)}) {
  require(parallel.context.size() == 1, "cross attention: sequences cannot be split over {} ranks yet",
          parallel.context.size());
}

Tensor CrossAttention::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const RecomputeFn& recompute_input, HostOffload*) {
  require(seq.encoder_states.defined(), "cross attention: there are no encoder states");
  Tensor q = query_.forward(ctx, x, recompute_input), both = key_value_.forward(ctx, seq.encoder_states);
  const int64_t keys = both.size(0);
  q = ops::view(ctx, q, {q.size(0), heads_.count, channels_});
  auto parts = ops::chunk(ctx, ops::view(ctx, both, {keys, heads_.count, 2 * channels_}), 2, 2);
  ops::AttentionOptions options = attention_options(heads_, seq, 4);
  options.causal = false;
  options.bias = seq.encoder_bias;
  Tensor o = ops::attention(ctx, q, parts[0], parts[1], options).o;
  return projection_.forward(ctx, ops::view(ctx, o, {o.size(0), heads_.count * channels_}));
}

void CrossAttention::visit(const ParameterVisitor& visitor) {
  query_.visit(visitor);
  key_value_.visit(visitor);
  projection_.visit(visitor);
}

}  // namespace megatron
