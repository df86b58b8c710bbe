#include "megatron/transformer/attention.h"

#include <tuple>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/qkv.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/kv_replication.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

int64_t groups_of(const ModelConfig& config) {
  return config.num_query_groups ? config.num_query_groups : config.num_attention_heads;
}

LinearOptions qkv_options(const ModelConfig& config, const TensorParallel& tp) {
  return {.initializer = Initializer::normal(config.init_method_std),
          .bias = config.add_bias_linear || config.add_qkv_bias,
          .parts = {},
          .overlap = tp.overlap.qkv};
}

LinearOptions projection_options(const ModelConfig& config) {
  return {.initializer = Initializer::normal(output_deviation(config)),
          .bias = config.add_attention_output_bias.value_or(config.add_bias_linear)};
}

}  // namespace

SelfAttention::SelfAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                             const ModelParallel& parallel)
    : heads_(layer, config, parallel.tensor),
      groups_(std::max<int64_t>(1, groups_of(config) / parallel.tensor.size())),
      head_dim_(config.kv_channels),
      softcap_(config.attn_logit_softcapping.value_or(0)),
      interleaved_(config.rotary_interleaved),
      rotates_(has_rope(config, layer)),
      causal_(!config.bidirectional_attention),
      off_by_one_(config.softmax_type == SoftmaxType::off_by_one),
      gated_(config.attention_output_gate),
      context_(parallel.context),
      key_group_(parallel.tensor.key_group),
      qkv_(name + ".linear_qkv", config.hidden_size,
           ((gated_ ? 2 : 1) * config.num_attention_heads + 2 * groups_of(config)) * head_dim_,
           parallel.tensor, qkv_options(config, parallel.tensor)),
      projection_(name + ".linear_proj", config.num_attention_heads * head_dim_, config.hidden_size,
                  parallel.tensor, projection_options(config)) {
  require(groups_ * parallel.tensor.size() == groups_of(config) * key_group_.size(),
          "attention: {} query groups cannot be split over {} ranks, {} to a group", groups_of(config),
          parallel.tensor.size(), key_group_.size());
  require(causal_ || context_.size() == 1,
          "attention: sequences whose tokens see those after them cannot be split over {} ranks yet",
          context_.size());
  if (has_window(config, layer)) {
    window_left_ = config.window_size[0];
    local_rope_ = config.rotary_base_local.has_value();
  }
  if (config.softmax_type == SoftmaxType::learnable)
    sinks_ = std::make_unique<Parameter>(
        name + ".core_attention.softmax_offset",
        ShardSpec::split({config.num_attention_heads}, 0, parallel.tensor.rank(), parallel.tensor.size()),
        Initializer::normal(config.init_method_std));
  if (config.qk_layernorm && config.qk_layernorm_full_width) {
    wide_q_norm_ =
        std::make_unique<WideNorm>(name + ".q_layernorm", heads_.global * head_dim_, config, parallel.tensor);
    wide_k_norm_ = std::make_unique<WideNorm>(name + ".k_layernorm", groups_of(config) * head_dim_, config,
                                              parallel.tensor);
  } else if (config.qk_layernorm) {
    q_norm_ = std::make_unique<Norm>(name + ".q_layernorm", head_dim_, config, parallel.tensor);
    k_norm_ = std::make_unique<Norm>(name + ".k_layernorm", head_dim_, config, parallel.tensor);
    // Held whole by every rank, each of which sees the gradient of its own heads alone.
    for (Norm* norm : {q_norm_.get(), k_norm_.get()})
      norm->visit([&](Parameter& p) { p.partial_over_tp = parallel.tensor.size() > 1; });
  }
}

Tensor SelfAttention::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                              const RecomputeFn& recompute_input, HostOffload* host) {
  Tensor fused, o;
  {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.qkv);
    fused = qkv_.forward(ctx, x, recompute_input);
  }
  if (plan_.core_attention) {
    o = recompute(ctx, {&fused, 1}, [this, seq](RankContext& c, std::span<const Tensor> inputs) {
      return std::vector<Tensor>{core(c, inputs[0], seq)};
    })[0];
  } else {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.core_attention);
    o = core(ctx, std::move(fused), seq);
  }
  PackerScope scope = offload_scope(ctx, host, plan_.offloaded.projection);
  return projection_.forward(ctx, o);
}

// From queries, keys and values as the projection leaves them to what the heads make of them. The projection
// is given up, so that it may be changed in place.
Tensor SelfAttention::core(RankContext& ctx, Tensor projected, const SeqInfo& seq) {
  const TraceRange range(ctx.tracer, "core_attention");
  Tensor fused = key_group_.size() > 1
                     ? share_keys(ctx, projected, key_group_, heads_.count, head_dim_, gated_ ? 2 : 1)
                     : std::move(projected);
  ops::Rotation rotation;
  if (rotates_)
    rotation = local_rope_ ? ops::Rotation{seq.local_cos, seq.local_sin, interleaved_}
                           : ops::Rotation{seq.rope_cos, seq.rope_sin, interleaved_};
  ops::AttentionOptions options = self_attention_options(heads_, seq);
  options.causal = causal_;
  options.bias = seq.attention_bias;
  options.softcap = softcap_;
  if (sinks_) options.sinks = sinks_->get(ctx);
  if (off_by_one_) options.sinks = {.value = ctx.zeros({heads_.count}, fused.dtype())};
  options.window_left = window_left_;
  const ops::QkvShape shape{heads_.count, groups_, head_dim_};
  const bool as_projected = !q_norm_ && !wide_q_norm_ && !gated_ && !seq.query_scale && !seq.cache;
  if (as_projected && shape.even() && context_.size() == 1) {
    Tensor o = ops::fused_attention(ctx, std::move(fused), shape, rotation, options).o;
    return ops::view(ctx, o, {o.size(0), heads_.count * head_dim_});
  }
  return attend_apart(ctx, fused, seq, rotation, options);
}

// With queries, keys and values as tensors of their own, to which something is done before they meet.
Tensor SelfAttention::attend_apart(RankContext& ctx, const Tensor& fused, const SeqInfo& seq,
                                   const ops::Rotation& rotation, const ops::AttentionOptions& options) {
  const int64_t columns = (gated_ ? 2 : 1) * heads_.count;  // that are neither key nor value
  const bool normed = q_norm_ || wide_q_norm_, rotates_later = normed || gated_;
  auto [q, k, v] =
      ops::split_qkv(ctx, fused, columns, groups_, head_dim_, rotates_later ? ops::Rotation{} : rotation);
  Tensor gate;
  if (gated_) std::tie(q, gate) = split_gate(ctx, q);
  if (normed) {
    q = q_norm_ ? q_norm_->forward(ctx, q) : wide_q_norm_->forward(ctx, q);
    k = k_norm_ ? k_norm_->forward(ctx, k) : wide_k_norm_->forward(ctx, k);
  }
  if (rotates_later && rotation.cos) {
    q = ops::rope(ctx, q, rotation);
    k = ops::rope(ctx, k, rotation);
  }
  if (seq.query_scale) q = ops::mul(ctx, q, seq.query_scale);
  Tensor o = attend(ctx, heads_, q, k, v, options, seq, context_);
  o = ops::view(ctx, o, {o.size(0), heads_.count * head_dim_});
  return gated_ ? ops::mul(ctx, o, ops::activation(ctx, Unary::Sigmoid, gate)) : o;
}

// Of each group the queries, then as many heads of the gate: [tokens, heads, head_dim] and [tokens, heads ·
// head_dim].
std::pair<Tensor, Tensor> SelfAttention::split_gate(RankContext& ctx, const Tensor& both) const {
  const int64_t tokens = both.size(0), width = heads_.count / groups_ * head_dim_;
  auto parts = ops::chunk(ctx, ops::view(ctx, both, {tokens * groups_, 2 * width}), 2, 1);
  return {ops::view(ctx, ops::contiguous(ctx, parts[0]), {tokens, heads_.count, head_dim_}),
          ops::view(ctx, ops::contiguous(ctx, parts[1]), {tokens, heads_.count * head_dim_})};
}

void SelfAttention::visit(const ParameterVisitor& visitor) {
  qkv_.visit(visitor);
  if (q_norm_) q_norm_->visit(visitor);
  if (k_norm_) k_norm_->visit(visitor);
  if (wide_q_norm_) wide_q_norm_->visit(visitor);
  if (wide_k_norm_) wide_k_norm_->visit(visitor);
  if (sinks_) visitor(*sinks_);
  projection_.visit(visitor);
}

}  // namespace megatron
