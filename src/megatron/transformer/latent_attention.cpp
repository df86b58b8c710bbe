#include "megatron/transformer/latent_attention.h"

#include <cmath>
#include <optional>
#include <tuple>

#include "megatron/autograd/recompute.h"
#include "megatron/autograd/rematerialize.h"
#include "megatron/nn/sequence_batch.h"
#include "megatron/ops/index.h"
#include "megatron/ops/matmul.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

LinearOptions up_options(const ModelConfig& config) {
  return {.initializer = input_initializer(config), .units = config.num_attention_heads};
}

// Decoding reads the weight's rows apart from the linear.
LinearOptions kv_up_options(const ModelConfig& config) {
  LinearOptions options = up_options(config);
  options.quantizable = false;
  return options;
}

LinearOptions output_options(const ModelConfig& config) {
  return {.initializer = output_initializer(config), .units = config.num_attention_heads};
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
               ShardSpec::whole({latent_ + rotated_, config.hidden_size}), input_initializer(config)),
      kv_norm_(name + ".kv_layernorm", latent_, latent_norms(config), parallel.tensor),
      kv_up_(name + ".linear_kv_up_proj", latent_, heads_.global * (plain_ + value_), parallel.tensor,
             kv_up_options(config)),
      projection_(name + ".linear_proj", heads_.global * value_, config.hidden_size, parallel.tensor,
                  output_options(config)) {
  kv_down_.partial_over_tp = parallel.tensor.splits_tokens();
  if (has_indexer(config, layer))
    indexer_ = std::make_unique<SparseIndexer>(name + ".core_attention.indexer", layer, config, parallel);
  else if (attends_to_chosen(config, layer))
    chooser_ = config.chooser_of_keys(layer);
  if (config.qk_clip) {
    const auto row_of = [](int64_t plain, QkPart first, int64_t others, QkPart second) {
      return [=](int64_t row) {
        const int64_t rows = plain + others;
        return ClippedRow{row / rows, row % rows < plain ? first : second};
      };
    };
    clip_ = std::make_unique<QkClipTarget>(QkClipTarget{.heads = heads_.global,
                                                        .groups = heads_.global,
                                                        .first_head = heads_.first,
                                                        .own_heads = heads_.count});
    clip_->weights.push_back(
        {&q_up_.parameter(), row_of(plain_, QkPart::query, rotated_, QkPart::lone_query)});
    clip_->weights.push_back({&kv_up_.parameter(), row_of(plain_, QkPart::key, value_, QkPart::none)});
  }
  if (!config.q_lora_rank) return;
  q_down_ = std::make_unique<Parameter>(name + ".linear_q_down_proj.weight",
                                        ShardSpec::whole({*config.q_lora_rank, config.hidden_size}),
                                        input_initializer(config));
  q_down_->partial_over_tp = parallel.tensor.splits_tokens();
  q_norm_ = std::make_unique<Norm>(name + ".q_layernorm", *config.q_lora_rank, latent_norms(config),
                                   parallel.tensor);
}

// What is kept of x where it can be made again.
LatentAttention::Latents LatentAttention::latents(RankContext& ctx, const Tensor& x,
                                                  const RecomputeFn& recompute_input) {
  std::optional<Rematerialize> scope;
  if (recompute_input) scope.emplace(ctx, x, recompute_input);
  Latents result{.query = q_down_ ? apply_linear(ctx, x, *q_down_).y : x};
  auto [latent, shared] = cut(ctx, apply_linear(ctx, x, kv_down_).y, latent_, 1);
  result.latent = ops::contiguous(ctx, latent);
  result.shared = ops::contiguous(ctx, shared);
  return result;
}

LatentAttention::Projected LatentAttention::project(RankContext& ctx, const Latents& latents,
                                                    const RecomputeFn& recompute_input, const SeqInfo& seq) {
  const auto all = [&](const Tensor& x) { return without_padding(ctx, x, seq, parallel_.tensor); };
  return {.q = all(q_down_ ? q_up_.forward(ctx, q_norm_->forward(ctx, latents.query))
                           : q_up_.forward(ctx, latents.query, recompute_input)),
          .kv = all(kv_up_.forward(ctx, kv_norm_.forward(ctx, latents.latent))),
          .shared = all(enter_tensor_parallel(ctx, latents.shared, parallel_.tensor))};
}

Tensor LatentAttention::forward(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                                const RecomputeFn& recompute_input, HostOffload* host) {
  if (seq.cache) return projection_.forward(ctx, absorbed(ctx, x, seq));
  Tensor o;
  if (indexer_ || chooser_) {
    o = sparse(ctx, x, seq, recompute_input);
  } else if (plan_.latent_up_projection) {
    o = with_recomputed_heads(ctx, x, seq, recompute_input, host);
  } else {
    Projected projected;
    {
      PackerScope scope = offload_scope(ctx, host, plan_.offloaded.qkv);
      projected = project(ctx, latents(ctx, x, recompute_input), recompute_input, seq);
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
  return projection_.forward(ctx, with_padding(ctx, o, parallel_.tensor));
}

CacheShape LatentAttention::cache_shape() const { return {.kv_heads = 1, .key_dim = latent_ + rotated_}; }

Tensor LatentAttention::absorbed(RankContext& ctx, const Tensor& x, const SeqInfo& seq) {
  const Latents made = latents(ctx, x, {});
  const int64_t tokens = x.size(0);
  Tensor q = q_up_.forward(ctx, q_down_ ? q_norm_->forward(ctx, made.query) : made.query);
  auto [q_plain, q_rotated] = cut(ctx, q.view({tokens, heads_.count, plain_ + rotated_}), plain_, 2);
  const ops::Rotation rotation{seq.rope_cos, seq.rope_sin, interleaved_};
  q_rotated = ops::rope(ctx, ops::contiguous(ctx, q_rotated), rotation);
  const Tensor shared = ops::rope(ctx, made.shared.view({tokens, 1, rotated_}), rotation);
  const Tensor latent = kv_norm_.forward(ctx, made.latent).view({tokens, 1, latent_});
  const Tensor& pages = seq.cache->pages(heads_.layer).keys;
  const Tensor key_parts[] = {latent, shared};
  ops::put_rows(ctx, ops::concat(ctx, key_parts, 2), seq.sequences->slots, pages);

  // Of each head: keys = plain_ rows · latent, values = value_ rows · latent.
  const Tensor up = kv_up_.weight(ctx).value.view({heads_.count, plain_ + value_, latent_});
  const Tensor to_latent =
      ops::matmul(ctx, ops::contiguous(ctx, q_plain.transpose(0, 1)), up.slice(1, 0, plain_));
  const Tensor query_parts[] = {ops::contiguous(ctx, to_latent.transpose(0, 1)), q_rotated};
  const Tensor o = attend_pages(ctx, heads_, ops::concat(ctx, query_parts, 2), pages,
                                pages.slice(2, 0, latent_), attention_options(heads_, seq, 0), seq);
  const Tensor values = ops::matmul(ctx, ops::contiguous(ctx, o.transpose(0, 1)),
                                    up.slice(1, plain_, plain_ + value_), {.transpose_b = true});
  return ops::contiguous(ctx, values.transpose(0, 1)).view({tokens, heads_.count * value_});
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
        return heads_of(c, project(c, {in[0], in[1], in[2]}, {}, seq), seq);
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

Tensor LatentAttention::sparse(RankContext& ctx, const Tensor& x, const SeqInfo& seq,
                               const RecomputeFn& recompute_input) {
  const Latents made = latents(ctx, x, recompute_input);
  if (chooser_) {
    require(seq.chosen_keys && seq.chosen_keys->contains(*chooser_),
            "layer {}: it attends to keys that layer {} chooses, which has not run on this pipeline stage",
            heads_.layer, *chooser_);
    const std::vector<Tensor> heads = heads_of(ctx, project(ctx, made, recompute_input, seq), seq);
    return core(ctx, heads, seq, seq.chosen_keys->at(*chooser_));
  }
  Tensor queries;
  {
    NoGrad no_grad(ctx);
    queries = q_norm_->forward(ctx, made.query.detach());
  }
  const SparseIndexer::Result index = indexer_->forward(ctx, x, queries, seq);
  if (seq.chosen_keys) (*seq.chosen_keys)[heads_.layer] = index.bias;
  const std::vector<Tensor> heads = heads_of(ctx, project(ctx, made, recompute_input, seq), seq);
  const Tensor o = core(ctx, heads, seq, index.bias);
  const Tensor loss = indexer_->loss(ctx, index, heads[0], heads[1], heads_.scale, seq);
  return loss ? attach_aux_loss(ctx, o, loss, seq.aux_loss_weight) : o;
}

std::vector<AuxLossSum> LatentAttention::take_losses() {
  return indexer_ ? indexer_->take_losses() : std::vector<AuxLossSum>();
}

Tensor LatentAttention::core(RankContext& ctx, std::span<const Tensor> heads, const SeqInfo& seq,
                             const Tensor& bias) const {
  ops::AttentionOptions options = self_attention_options(heads_, seq);
  options.bias = bias;
  if (clip_ && seq.training) options.max_scores = clip_->tracked(ctx, heads[0].dtype());
  Tensor o = attend(ctx, heads_, heads[0], heads[1], heads[2], options, seq, parallel_.context);
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
  if (indexer_) indexer_->visit(visitor);
}

}  // namespace megatron
