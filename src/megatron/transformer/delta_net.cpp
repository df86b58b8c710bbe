#include "megatron/transformer/delta_net.h"

#include <cmath>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/recurrent_cache.h"

namespace megatron {
namespace {

int64_t keys(const ModelConfig& config) { return config.linear_num_key_heads * config.linear_key_head_dim; }
int64_t values(const ModelConfig& config) {
  return config.linear_num_value_heads * config.linear_value_head_dim;
}

// Of the output of the projection: queries, keys, values, gate, strengths, decays.
std::vector<int64_t> projected(const ModelConfig& config) {
  return {keys(config),
          keys(config),
          values(config),
          values(config),
          config.linear_num_value_heads,
          config.linear_num_value_heads};
}

// Ranks share out key heads, each with the value heads that read it.
SplitShard by_heads(const ModelConfig& config, const TensorParallel& tp) {
  return tp.split("delta net", {config.linear_num_value_heads}, 0, config.linear_num_key_heads);
}

SplitShard convolution(const ModelConfig& config, const TensorParallel& tp) {
  const int64_t parts[] = {keys(config), keys(config), values(config)};
  return tp.split("delta net", {2 * keys(config) + values(config), 1, config.linear_conv_kernel_dim}, 0,
                  config.linear_num_key_heads, parts);
}

}  // namespace

DeltaNet::DeltaNet(const std::string& name, int64_t layer, const ModelConfig& config,
                   const ModelParallel& parallel)
    : layer_(layer),
      tp_(parallel.tensor),
      key_heads_(parallel.tensor.count("delta net: key heads", config.linear_num_key_heads)),
      value_heads_(config.linear_num_value_heads / config.linear_num_key_heads * key_heads_),
      key_channels_(config.linear_key_head_dim),
      value_channels_(config.linear_value_head_dim),
      epsilon_(config.layernorm_epsilon),
      share_("delta net", parallel.context,
             {{key_heads_, key_channels_, true},
              {key_heads_, key_channels_, true},
              {value_heads_, value_channels_},
              {value_heads_, 1},
              {value_heads_, 1}}),
      in_(name + ".in_proj", config.hidden_size,
          2 * (keys(config) + values(config) + config.linear_num_value_heads), parallel.tensor,
          {.initializer = input_initializer(config),
           .parts = projected(config),
           .units = config.linear_num_key_heads}),
      conv_weight_(name + ".conv1d.weight", convolution(config, parallel.tensor),
                   Initializer::uniform(1 / std::sqrt(static_cast<double>(config.linear_conv_kernel_dim)))),
      a_log_(name + ".A_log", by_heads(config, parallel.tensor), Initializer::log_uniform(1, 16)),
      dt_bias_(name + ".dt_bias", by_heads(config, parallel.tensor), Initializer::constant(1)),
      norm_weight_(name + ".out_norm.weight", ShardSpec::whole({value_channels_}), Initializer::constant(1)),
      out_(name + ".out_proj", values(config), config.hidden_size, parallel.tensor,
           {.initializer = output_initializer(config), .units = config.linear_num_key_heads}) {
  for (Parameter* parameter : {&a_log_, &dt_bias_}) parameter->keep_fp32 = true;
  norm_weight_.partial_over_tp = parallel.tensor.size() > 1;  // each rank sees its own heads
}

Tensor DeltaNet::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                         const RecomputeFn& recompute_input, HostOffload*) {
  const SequenceRows rows = share_.rows(seq);
  const int64_t inner = value_heads_ * value_channels_,
                sizes[] = {2 * key_heads_ * key_channels_ + inner, inner, value_heads_, value_heads_};
  const std::vector<Tensor> parts =
      ops::split(ctx, without_padding(ctx, in_.forward(ctx, x, recompute_input), seq, tp_), sizes, 1);
  const std::vector<Tensor> states = share_.whole(ctx, {parts[0], parts[2], parts[3]}, seq);
  const RecurrentCache carried(seq, layer_);
  Tensor qkv = carried.convolve(ctx, states[0], share_.weight(ctx, conv_weight_, 0, 3), {}, rows);
  const auto per_head = [&](Parameter& parameter) { return share_.weight(ctx, parameter, 3, 1, true); };
  RecurrentState state = carried.state(ctx);
  Tensor o = ops::delta_rule(ctx, qkv, states[1], states[2], per_head(a_log_), per_head(dt_bias_),
                             {.key_heads = share_.heads(0),
                              .value_heads = share_.heads(2),
                              .key_channels = key_channels_,
                              .value_channels = value_channels_},
                             rows, state.value);
  state.keep(ctx);
  o = share_.held(ctx, o, seq);
  const auto leave = [this](RankContext& c, const Tensor& x, const Tensor& gate) {
    return with_padding(
        c,
        ops::gated_norm(
            c, x, gate, norm_weight_.get(c),
            {.groups = value_heads_, .gate_first = false, .epsilon = epsilon_, .sum_over_ranks = {}}),
        tp_);
  };
  if (!recompute_norm_ || out_.fp8()) return out_.forward(ctx, leave(ctx, o, parts[1]));
  const Tensor inputs[] = {o, parts[1]};
  return recompute_for(
      ctx, inputs,
      [leave](RankContext& c, std::span<const Tensor> in) {
        return std::vector<Tensor>{leave(c, in[0], in[1])};
      },
      [&](std::span<const Tensor> normed) { return out_.forward(ctx, normed[0]); });
}

CacheShape DeltaNet::cache_shape() const {
  return {.convolved = 2 * key_heads_ * key_channels_ + value_heads_ * value_channels_,
          .kept = conv_weight_.shard.local_shape[2] - 1,
          .state = {value_heads_, key_channels_, value_channels_}};
}

void DeltaNet::visit(const ParameterVisitor& visitor) {
  in_.visit(visitor);
  for (Parameter* parameter : {&conv_weight_, &a_log_, &dt_bias_, &norm_weight_}) visitor(*parameter);
  out_.visit(visitor);
}

}  // namespace megatron
