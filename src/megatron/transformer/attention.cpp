#include "megatron/transformer/attention.h"

#include <tuple>

#include "megatron/autograd/recompute.h"
#include "megatron/nn/sequence_batch.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/qkv_cache.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shape.h"
#include "megatron/parallel/tensor/kv_replication.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/initializers.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

LinearOptions qkv_options(const ModelConfig& config, const TensorParallel& tp, const HeadGroups& groups) {
  LinearOptions options{.initializer = input_initializer(config),
                        .bias = config.add_bias_linear || config.add_qkv_bias,
                        .parts = {},
                        .units = groups.units,
                        .overlap = tp.layer_overlaps.qkv};
  if (groups.split_groups)
    options.split = [groups, sections = config.attention_output_gate ? 2 : 1](const Shape& shape) {
      return groups.split(shape, sections);
    };
  return options;
}

LinearOptions projection_options(const ModelConfig& config, const TensorParallel& tp,
                                 const HeadGroups& groups) {
  return {.initializer = output_initializer(config),
          .bias = config.add_attention_output_bias.value_or(config.add_bias_linear),
          .units = groups.units,
          .overlap = tp.layer_overlaps.proj};
}

// Where ranks of equal replicas share a query group, or have several.
int64_t groups_of_rank(const ModelConfig& config, const TensorParallel& tp, const HeadGroups& groups) {
  if (groups.split_groups) return tp.count("attention: heads", config.num_attention_heads);
  if (tp.unequal()) return tp.count("attention: query groups", query_groups(config));
  return std::max<int64_t>(1, query_groups(config) / tp.size());
}

// Rows of a group: its queries, their gates, a key and a value.
ClippedRow clipped_row(int64_t row, int64_t queries, bool gated, int64_t head_dim) {
  const int64_t group_rows = (gated ? 2 : 1) * queries + 2 * head_dim, at = row % group_rows;
  const int64_t key = group_rows - 2 * head_dim;
  const QkPart part = at < queries                       ? QkPart::query
                      : at >= key && at < key + head_dim ? QkPart::key
                                                         : QkPart::none;
  return {row / group_rows, part};
}

}  // namespace

SelfAttention::SelfAttention(const std::string& name, int64_t layer, const ModelConfig& config,
                             const ModelParallel& parallel)
    : tp_(parallel.tensor),
      groups_of_ranks_(config, parallel.tensor),
      heads_(layer, config, parallel.tensor, {}, groups_of_ranks_.units),
      groups_(groups_of_rank(config, parallel.tensor, groups_of_ranks_)),
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
           ((gated_ ? 2 : 1) * config.num_attention_heads + 2 * query_groups(config)) * head_dim_,
           parallel.tensor, qkv_options(config, parallel.tensor, groups_of_ranks_)),
      projection_(name + ".linear_proj", config.num_attention_heads * head_dim_, config.hidden_size,
                  parallel.tensor, projection_options(config, parallel.tensor, groups_of_ranks_)) {
  require(tp_.unequal() || groups_ * tp_.size() == query_groups(config) * key_group_.size(),
          "attention: {} query groups cannot be split over {} ranks, {} to a group", query_groups(config),
          parallel.tensor.size(), key_group_.size());
  require(causal_ || context_.size() == 1,
          "attention: sequences whose tokens see those after them cannot be split over {} ranks yet",
          context_.size());
  if (has_window(config, layer)) {
    window_left_ = config.window_size[0];
    local_rope_ = config.rotary_base_local.has_value();
  }
  if (config.softmax_type == SoftmaxType::learnable)
    sinks_ =
        std::make_unique<Parameter>(name + ".core_attention.softmax_offset",
                                    tp_.split(name, {config.num_attention_heads}, 0, groups_of_ranks_.units),
                                    Initializer::normal(config.init_method_std));
  if (config.qk_clip) {
    clip_ = std::make_unique<QkClipTarget>(QkClipTarget{.heads = heads_.global,
                                                        .groups = query_groups(config),
                                                        .first_head = heads_.first,
                                                        .own_heads = heads_.count});
    clip_->weights.push_back({&qkv_.parameter(), [queries = heads_.global / query_groups(config) * head_dim_,
                                                  gated = gated_, head_dim = head_dim_](int64_t row) {
                                return clipped_row(row, queries, gated, head_dim);
                              }});
  }
  if (config.qk_l2_norm) {  // in place of norms with weights, as upstream has it
    l2_epsilon_ = config.layernorm_epsilon;
  } else if (config.qk_layernorm && config.qk_layernorm_full_width) {
    require(!groups_of_ranks_.split_groups,
            "attention: norms of all heads at once need a query group for every rank of the largest replica");
    wide_q_norm_ = std::make_unique<WideNorm>(name + ".q_layernorm", heads_.global * head_dim_,
                                              groups_of_ranks_.units, config, parallel.tensor);
    wide_k_norm_ = std::make_unique<WideNorm>(name + ".k_layernorm", query_groups(config) * head_dim_,
                                              groups_of_ranks_.units, config, parallel.tensor);
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
    fused = without_padding(ctx, qkv_.forward(ctx, x, recompute_input), seq, tp_);
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
  return projection_.forward(ctx, with_padding(ctx, o, tp_));
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
  if (clip_ && seq.training) options.max_scores = clip_->tracked(ctx, fused.dtype());
  options.window_left = window_left_;
  const ops::QkvShape shape{heads_.count, groups_, head_dim_};
  const bool as_projected = !q_norm_ && !wide_q_norm_ && !l2_epsilon_ && !gated_ && !seq.query_scale &&
                            !groups_of_ranks_.split_groups;
  if (as_projected && seq.cache) {
    const PagedCache::Pages& pages = seq.cache->pages(heads_.layer);
    if (const Tensor q = ops::split_qkv_to_cache(ctx, fused, shape, rotation, seq.sequences->slots,
                                                 pages.keys, pages.values)) {
      const Tensor o = attend_pages(ctx, heads_, q, pages.keys, pages.values, options, seq);
      return ops::view(ctx, o, {o.size(0), heads_.count * head_dim_});
    }
  }
  if (as_projected && !seq.cache && shape.even() && context_.size() == 1) {
    Tensor o = ops::fused_attention(ctx, std::move(fused), shape, rotation, options).o;
    return ops::view(ctx, o, {o.size(0), heads_.count * head_dim_});
  }
  return attend_apart(ctx, fused, seq, rotation, options);
}

// With queries, keys and values as tensors of their own, to which something is done before they meet.
Tensor SelfAttention::attend_apart(RankContext& ctx, const Tensor& fused, const SeqInfo& seq,
                                   const ops::Rotation& rotation, const ops::AttentionOptions& options) {
  const bool normed = q_norm_ || wide_q_norm_ || l2_epsilon_;
  const bool rotates_later = normed || gated_ || groups_of_ranks_.split_groups;
  auto [q, k, v, gate] = split_heads(ctx, fused, rotates_later ? ops::Rotation{} : rotation);
  if (l2_epsilon_) {
    const ops::NormOptions norm{.kind = NormKind::Rms, .epsilon = *l2_epsilon_};
    q = ops::norm(ctx, q, {}, {}, norm);
    k = ops::norm(ctx, k, {}, {}, norm);
  } else if (normed) {
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

SelfAttention::Heads SelfAttention::split_heads(RankContext& ctx, const Tensor& fused,
                                                const ops::Rotation& rotation) const {
  if (groups_of_ranks_.split_groups) return split_shared_groups(ctx, fused);
  const int64_t columns = (gated_ ? 2 : 1) * heads_.count;  // that are neither key nor value
  auto [q, k, v] = ops::split_qkv(ctx, fused, columns, groups_, head_dim_, rotation);
  Heads heads{q, k, v, {}};
  if (gated_) std::tie(heads.q, heads.gate) = split_gate(ctx, q);
  return heads;
}

// Groups have different numbers of heads here: every head gets its group's key and value.
SelfAttention::Heads SelfAttention::split_shared_groups(RankContext& ctx, const Tensor& fused) const {
  std::vector<int64_t> sizes;
  for (int64_t heads : groups_of_ranks_.heads_of_group) {
    sizes.push_back(heads * head_dim_);
    if (gated_) sizes.push_back(heads * head_dim_);
    sizes.insert(sizes.end(), {head_dim_, head_dim_});
  }
  const std::vector<Tensor> columns = ops::split(ctx, fused, sizes, 1);
  std::vector<Tensor> q, gate, k, v;
  auto next = columns.begin();
  for (int64_t heads : groups_of_ranks_.heads_of_group) {
    q.push_back(*next++);
    if (gated_) gate.push_back(*next++);
    const Tensor key = *next++, value = *next++;
    k.insert(k.end(), static_cast<size_t>(heads), key);
    v.insert(v.end(), static_cast<size_t>(heads), value);
  }
  const auto join = [&](const std::vector<Tensor>& parts) {
    return ops::view(ctx, ops::concat(ctx, parts, 1), {fused.size(0), heads_.count, head_dim_});
  };
  return {join(q), join(k), join(v), gated_ ? ops::concat(ctx, gate, 1) : Tensor{}};
}

// Of each group the queries, then as many heads of the gate: [tokens, heads, head_dim] and [tokens, heads ·
// head_dim].
std::pair<Tensor, Tensor> SelfAttention::split_gate(RankContext& ctx, const Tensor& both) const {
  const int64_t tokens = both.size(0), width = heads_.count / groups_ * head_dim_;
  auto parts = ops::chunk(ctx, ops::view(ctx, both, {tokens * groups_, 2 * width}), 2, 1);
  return {ops::view(ctx, ops::contiguous(ctx, parts[0]), {tokens, heads_.count, head_dim_}),
          ops::view(ctx, ops::contiguous(ctx, parts[1]), {tokens, heads_.count * head_dim_})};
}

CacheShape SelfAttention::cache_shape() const {
  return {.kv_heads = groups_, .key_dim = head_dim_, .value_dim = head_dim_, .window = window_left_};
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
