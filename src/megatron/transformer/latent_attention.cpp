#include "megatron/transformer/latent_attention.h"

#include <cmath>
#include <optional>
#include <tuple>

#include "megatron/autograd/recompute.h"
#include "megatron/autograd/rematerialize.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

LinearOptions up_options(const ModelConfig& config) {
  return {.initializer = Initializer::normal(config.init_method_std)};
}

LinearOptions output_options(const ModelConfig& config) {
  return {.initializer = Initializer::normal(output_deviation(config))};
}

double softmax_scale(const ModelConfig& config) {
  if (config.softmax_scale) return *config.softmax_scale;
  const double yarn = config.rope_type == RopeType::yarn && config.mscale_all_dim != 0
                          ? ops::yarn_mscale(config.rotary_scaling_factor, config.mscale_all_dim)
                          : 1;
  return yarn * yarn / std::sqrt(static_cast<double>(config.qk_head_dim + config.qk_pos_emb_head_dim));
}

// The norms of latent vectors may have an epsilon of their own.
ModelConfig latent_norms(ModelConfig config) {
  config.layernorm_epsilon = config.latent_norm_epsilon.value_or(config.layernorm_epsilon);
  return config;
}

std::pair<Tensor, Tensor> cut(RankContext& ctx, const Tensor& x, int64_t first, int dim) {
  const int64_t sizes[] = {first, x.size(dim) - first};
  std::vector<Tensor> parts = ops::split(ctx, x, sizes, dim);
  return {parts[0], parts[1]};
}

}  // namespace

LatentAttention::LatentAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                                 const ModelParallel& parallel)
    : heads_(layer, config, parallel.tensor, softmax_scale(config)),
      plain_(config.qk_head_dim),
      rotated_(config.qk_pos_emb_head_dim),
      value_(config.v_head_dim),
      latent_(config.kv_lora_rank),
      interleaved_(config.mla_rotary_interleaved),
      parallel_(parallel),
      q_up_(name + (config.q_lora_rank ? ".linear_q_up_proj" : ".linear_q_proj"),
            config.q_lora_rank.value_or(config.hidden_size), heads_.global * (plain_ + rotated_),
            parallel.tensor, up_options(config)),
      kv_down_(name + ".linear_kv_down_proj.weight",
               ShardSpec::whole({latent_ + rotated_, config.hidden_size}),
               Initializer::normal(config.init_method_std)),
      kv_norm_(name + ".kv_layernorm", latent_, latent_norms(config), parallel.tensor),
      kv_up_(name + ".linear_kv_up_proj", latent_, heads_.global * (plain_ + value_), parallel.tensor,
             up_options(config)),
      projection_(name + ".linear_proj", heads_.global * value_, config.hidden_size, parallel.tensor,
                  output_options(config)) {
  kv_down_.partial_over_tp = parallel.tensor.splits_tokens();
  if (!config.q_lora_rank) return;
  q_down_ = std::make_unique<Parameter>(name + ".linear_q_down_proj.weight",
                                        ShardSpec::whole({*config.q_lora_rank, config.hidden_size}),
                                        Initializer::normal(config.init_method_std));
  q_down_->partial_over_tp = parallel.tensor.splits_tokens();
  q_norm_ = std::make_unique<Norm>(name + ".q_layernorm", *config.q_lora_rank, latent_norms(config),
                                   parallel.tensor);
}

// What is kept of x where it can be made again.
LatentAttention::Latents LatentAttention::latents(RankContext& ctx, const Tensor& x,
                                                  const RecomputeFn& recompute_input) {
  std::optional<Rematerialize> scope;
  if (recompute_input) scope.emplace(ctx, x, recompute_input);
  Latents result{.query = q_down_ ? ops::linear(ctx, x, q_down_->get(ctx)) : x};
  auto [latent, shared] = cut(ctx, ops::linear(ctx, x, kv_down_.get(ctx)), latent_, 1);
  result.latent = ops::contiguous(ctx, latent);
  result.shared = ops::contiguous(ctx, shared);
  return result;
}

LatentAttention::Projected LatentAttention::project(RankContext& ctx, const Latents& latents,
                                                    const RecomputeFn& recompute_input) {
  return {.q = q_down_ ? q_up_.forward(ctx, q_norm_->forward(ctx, latents.query))
                       : q_up_.forward(ctx, latents.query, recompute_input),
          .kv = kv_up_.forward(ctx, kv_norm_.forward(ctx, latents.latent)),
          .shared = enter_tensor_parallel(ctx, latents.shared, parallel_.tensor)};
}

Tensor LatentAttention::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                const RecomputeFn& recompute_input, HostOffload* host) {
  Tensor o;
  if (plan_.latent_up_projection) {
    o = with_recomputed_heads(ctx, x, seq, recompute_input, host);
  } else {
    Projected projected;
    {
      PackerScope scope = offload_scope(ctx, host, plan_.offloaded.qkv);
      projected = project(ctx, latents(ctx, x, recompute_input), recompute_input);
    }
    if (plan_.core_attention) {
      const Tensor inputs[] = {projected.q, projected.kv, projected.shared};
      o = recompute(ctx, inputs, [this, seq](RankContext& c, std::span<const Tensor> in) {
        return std::vector<Tensor>{core(c, heads_of(c, {in[0], in[1], in[2]}, seq), seq)};
      })[0];
    } else {
      PackerScope scope = offload_scope(ctx, host, plan_.offloaded.core_attention);
      o = core(ctx, heads_of(ctx, projected, seq), seq);
    }
  }
  PackerScope scope = offload_scope(ctx, host, plan_.offloaded.projection);
  return projection_.forward(ctx, o);
}

// Keeps the latent vectors alone; attention itself is computed again only where that is asked for, too.
Tensor LatentAttention::with_recomputed_heads(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                              const RecomputeFn& recompute_input, HostOffload* host) {
  Latents kept;
  {
    PackerScope scope = offload_scope(ctx, host, plan_.offloaded.qkv);
    kept = latents(ctx, x, recompute_input);
  }
  std::optional<Rematerialize> rematerialized;
  if (recompute_input && !q_down_) rematerialized.emplace(ctx, x, recompute_input);
  const Tensor inputs[] = {kept.query, kept.latent, kept.shared};
  return recompute_for(
      ctx, inputs,
      [this, seq](RankContext& c, std::span<const Tensor> in) {
        return heads_of(c, project(c, {in[0], in[1], in[2]}, {}), seq);
      },
      [&](std::span<const Tensor> heads) {
        const auto body = [this, seq](RankContext& c, std::span<const Tensor> in) {
          return std::vector<Tensor>{core(c, in, seq)};
        };
        return plan_.core_attention ? recompute(ctx, heads, body)[0] : core(ctx, heads, seq);
      });
}

std::vector<Tensor> LatentAttention::heads_of(RankContext& ctx, const Projected& projected,
                                              const SeqInfo& seq) const {
  const int64_t tokens = projected.q.size(0);
  Tensor q = ops::view(ctx, projected.q, {tokens, heads_.count, plain_ + rotated_});
  Tensor kv = ops::view(ctx, projected.kv, {tokens, heads_.count, plain_ + value_});
  Tensor shared = ops::view(ctx, projected.shared, {tokens, 1, rotated_});

  const ops::Rotation rotation{seq.rope_cos, seq.rope_sin, interleaved_};
  auto [q_plain, q_rotated] = cut(ctx, q, plain_, 2);
  auto [k_plain, v] = cut(ctx, kv, plain_, 2);
  q_rotated = ops::rope(ctx, ops::contiguous(ctx, q_rotated), rotation);
  Tensor k_rotated = ops::expand(ctx, ops::rope(ctx, shared, rotation), {tokens, heads_.count, rotated_});
  const Tensor q_parts[] = {q_plain, q_rotated}, k_parts[] = {k_plain, k_rotated};
  return {ops::concat(ctx, q_parts, 2), ops::concat(ctx, k_parts, 2), ops::contiguous(ctx, v)};
}

Tensor LatentAttention::core(RankContext& ctx, std::span<const Tensor> heads, const SeqInfo& seq) const {
  Tensor o = attend(ctx, heads_, heads[0], heads[1], heads[2], self_attention_options(heads_, seq), seq,
                    parallel_.context);
  return ops::view(ctx, o, {heads[0].size(0), heads_.count * value_});
}

void LatentAttention::visit(const ParameterVisitor& visitor) {
  if (q_down_) visitor(*q_down_);
  if (q_norm_) q_norm_->visit(visitor);
  q_up_.visit(visitor);
  visitor(kv_down_);
  kv_norm_.visit(visitor);
  kv_up_.visit(visitor);
  projection_.visit(visitor);
}

}  // namespace megatron
