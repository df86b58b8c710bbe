#include "megatron/transformer/delta_net.h"

#include <cmath>

#include "megatron/autograd/recompute.h"
#include "megatron/base/sum.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/channel_delta.h"
#include "megatron/ops/delta_rule.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/shape.h"
#include "megatron/ops/weight_tensor.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"
#include "megatron/transformer/recurrent_cache.h"

namespace megatron {
namespace {

constexpr double kLengthEpsilon = 1e-6;  // of squared lengths of queries and keys

int64_t keys(const ModelConfig& config) { return config.linear_num_key_heads * config.linear_key_head_dim; }
int64_t values(const ModelConfig& config) {
  return config.linear_num_value_heads * config.linear_value_head_dim;
}

// The projection makes, side by side: queries, keys, values, gate of the output; then strengths and decays,
// or by channels decays, strengths of erasing and of writing.
std::vector<int64_t> projected(const ModelConfig& config) {
  std::vector<int64_t> parts = {keys(config), keys(config), values(config), values(config)};
  if (config.gates_channels())
    parts.insert(parts.end(), {keys(config), keys(config), values(config)});
  else
    parts.insert(parts.end(), {config.linear_num_value_heads, config.linear_num_value_heads});
  return parts;
}

// What a rank of a context-parallel group gets a part of, `keys` and `values` heads of this tensor rank.
std::vector<RecurrentContextParallel::Part> shared_parts(const ModelConfig& config, int64_t keys,
                                                         int64_t values) {
  const RecurrentContextParallel::Part key{keys, config.linear_key_head_dim, true},
      value{values, config.linear_value_head_dim}, head{values, 1};
  if (config.gates_channels()) return {key, key, value, key, key, value};
  return {key, key, value, head, head};
}

// Ranks share out key heads, each with the value heads that read it. `length` is a multiple of them.
SplitShard split_heads(const ModelConfig& config, const TensorParallel& tp, int64_t length) {
  return tp.split("delta net", {length}, 0, config.linear_num_key_heads);
}

int64_t decay_rates(const ModelConfig& config) {
  return config.gates_channels() ? config.linear_num_key_heads : config.linear_num_value_heads;
}
int64_t decay_biases(const ModelConfig& config) {
  return config.gates_channels() ? keys(config) : config.linear_num_value_heads;
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
      channels_(config.gates_channels()),
      tp_(parallel.tensor),
      key_heads_(parallel.tensor.count("delta net: key heads", config.linear_num_key_heads)),
      value_heads_(config.linear_num_value_heads / config.linear_num_key_heads * key_heads_),
      key_channels_(config.linear_key_head_dim),
      value_channels_(config.linear_value_head_dim),
      epsilon_(config.layernorm_epsilon),
      share_("delta net", parallel.context, shared_parts(config, key_heads_, value_heads_)),
      in_(name + ".in_proj", config.hidden_size, sum_of(projected(config)), parallel.tensor,
          {.initializer = input_initializer(config),
           .parts = projected(config),
           .units = config.linear_num_key_heads}),
      conv_weight_(name + ".conv1d.weight", convolution(config, parallel.tensor),
                   Initializer::uniform(1 / std::sqrt(static_cast<double>(config.linear_conv_kernel_dim)))),
      a_log_(name + ".A_log", split_heads(config, parallel.tensor, decay_rates(config)),
             Initializer::log_uniform(1, 16)),
      dt_bias_(name + ".dt_bias", split_heads(config, parallel.tensor, decay_biases(config)),
               channels_ ? Initializer::step_bias(1e-3, 1e-1) : Initializer::constant(1)),
      norm_weight_(name + ".out_norm.weight", ShardSpec::whole({value_channels_}), Initializer::constant(1)),
      out_(name + ".out_proj", values(config), config.hidden_size, parallel.tensor,
           {.initializer = output_initializer(config), .units = config.linear_num_key_heads}) {
  for (Parameter* parameter : {&a_log_, &dt_bias_}) parameter->keep_fp32 = true;
  norm_weight_.partial_over_tp = parallel.tensor.size() > 1;  // each rank sees its own heads
}

Tensor DeltaNet::by_heads(RankContext& ctx, const Tensor& qkv, const std::vector<Tensor>& parts,
                          const SequenceRows& rows, const Tensor& state) {
  const auto per_head = [&](Parameter& parameter) { return share_.weight(ctx, parameter, 3, 1, true); };
  return ops::delta_rule(ctx, qkv, parts[1], parts[2], per_head(a_log_), per_head(dt_bias_),
                         {.key_heads = share_.heads(0),
                          .value_heads = share_.heads(2),
                          .key_channels = key_channels_,
                          .value_channels = value_channels_},
                         rows, state);
}

Tensor DeltaNet::by_channels(RankContext& ctx, const Tensor& qkv, const std::vector<Tensor>& parts,
                             const SequenceRows& rows, const Tensor& state) {
  const int64_t tokens = qkv.size(0), heads = share_.heads(0), width = heads * key_channels_;
  const int64_t sizes[] = {width, width, share_.heads(2) * value_channels_};
  const std::vector<Tensor> made = ops::split(ctx, qkv, sizes, 1);
  const auto count = static_cast<double>(key_channels_);
  // Divided by √(|x|² + ε), which is that of the mean of squares but for a factor.
  const auto unit = [&](const Tensor& x, double factor) {
    const Tensor by_head = ops::view(ctx, ops::contiguous(ctx, x), {tokens, heads, key_channels_});
    const Tensor normed = ops::norm(ctx, by_head, {}, {}, {.epsilon = kLengthEpsilon / count});
    return ops::view(ctx, ops::scale(ctx, normed, factor / std::sqrt(count)), {tokens, width});
  };
  const auto strength = [&](const Tensor& x) {
    return ops::activation(ctx, Unary::Sigmoid, ops::contiguous(ctx, x));
  };
  const DType wide = accumulation_dtype(qkv.dtype());
  const Tensor bias = ops::weight_tensor(ctx, share_.weight(ctx, dt_bias_, 3, 1), wide);
  const Tensor rates =
      ops::activation(ctx, Unary::Exp, ops::weight_tensor(ctx, share_.weight(ctx, a_log_, 3, 1, true), wide));
  const Tensor steps = ops::activation(
      ctx, Unary::Softplus, ops::add(ctx, ops::cast(ctx, ops::contiguous(ctx, parts[1]), wide), bias));
  const Tensor decays = ops::mul(ctx, ops::view(ctx, steps, {tokens, heads, key_channels_}),
                                 ops::view(ctx, ops::scale(ctx, rates, -1), {heads, 1}));
  const Tensor key = unit(made[1], 1);
  return ops::channel_delta(ctx,
                            {.q = unit(made[0], 1 / std::sqrt(count)),
                             .k = key,
                             .e = ops::mul(ctx, strength(parts[2]), key),
                             .g = ops::view(ctx, decays, {tokens, width}),
                             .v = ops::mul(ctx, strength(parts[3]), ops::contiguous(ctx, made[2]))},
                            {.key_heads = heads,
                             .value_heads = share_.heads(2),
                             .key_channels = key_channels_,
                             .value_channels = value_channels_},
                            rows, state);
}

Tensor DeltaNet::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                         const RecomputeFn& recompute_input, HostOffload*) {
  const SequenceRows rows = share_.rows(seq);
  const int64_t inner = value_heads_ * value_channels_, read = key_heads_ * key_channels_;
  std::vector<int64_t> sizes = {2 * read + inner, inner};
  if (channels_)
    sizes.insert(sizes.end(), {read, read, inner});
  else
    sizes.insert(sizes.end(), {value_heads_, value_heads_});
  std::vector<Tensor> parts =
      ops::split(ctx, without_padding(ctx, in_.forward(ctx, x, recompute_input), seq, tp_), sizes, 1);
  const Tensor gate = parts[1];
  parts.erase(parts.begin() + 1);
  const std::vector<Tensor> states = share_.whole(ctx, parts, seq);
  const RecurrentCache carried(seq, layer_);
  const Tensor qkv = carried.convolve(ctx, states[0], share_.weight(ctx, conv_weight_, 0, 3), {}, rows);
  RecurrentState state = carried.state(ctx);
  Tensor o = channels_ ? by_channels(ctx, qkv, states, rows, state.value)
                       : by_heads(ctx, qkv, states, rows, state.value);
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
  if (!recompute_norm_ || out_.fp8()) return out_.forward(ctx, leave(ctx, o, gate));
  const Tensor inputs[] = {o, gate};
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
