#include "megatron/parallel/context/attention.h"

namespace megatron {

ContextKind context_kind(const std::string& name) {
  if (name == "p2p") return ContextKind::p2p;
  if (name == "all_gather") return ContextKind::all_gather;
  if (name == "a2a") return ContextKind::a2a;
  if (name == "a2a+p2p") return ContextKind::a2a_p2p;
  fail("context parallelism: there is no cp_comm_type {}; use p2p, all_gather, a2a or a2a+p2p", name);
}

Tensor context_attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                         const ops::AttentionOptions& options, const ContextSlices& slices,
                         const ContextParallel& context, ContextKind kind) {
  require(!options.bias, "context parallelism: attention with a bias {} is not split over ranks",
          options.bias);
  if (kind == ContextKind::p2p) return ring_attention(ctx, q, k, v, options, slices.slice, context.group);
  if (kind == ContextKind::all_gather)
    return all_gather_kv_attention(ctx, q, k, v, options, slices, context.group);

  bool ring = kind == ContextKind::a2a_p2p;
  require(!ring || context.inner.size() * context.outer.size() == context.size(),
          "context parallelism: a2a+p2p over {} ranks needs two levels, not {} x {}", context.size(),
          context.inner.size(), context.outer.size());
  const ProcessGroup& group = ring ? context.inner : context.group;
  const RowOrder& order = ring ? slices.inner : slices.whole;
  Tensor whole_q = tokens_for_heads(ctx, q, group, order), whole_k = tokens_for_heads(ctx, k, group, order),
         whole_v = tokens_for_heads(ctx, v, group, order);
  ops::AttentionOptions part = options;
  int64_t first = group.rank() * whole_q.size(1);  // of this rank's heads among q's
  if (part.offsets.global_heads == 0) part.offsets.global_heads = q.size(1);
  part.offsets.head_begin += first;
  part.sinks_begin += first;
  part.max_scores_begin += first;
  Tensor o;
  if (ring) {
    o = ring_attention(ctx, whole_q, whole_k, whole_v, part, slices.outer_slice, context.outer);
  } else {
    part.batch = slices.slice.sequences;
    part.cu_queries = part.cu_keys = slices.cu_whole;
    part.max_queries = part.max_keys = slices.max_whole;
    o = ops::attention(ctx, whole_q, whole_k, whole_v, part).o;
  }
  return heads_for_tokens(ctx, o, group, order);
}

}  // namespace megatron
