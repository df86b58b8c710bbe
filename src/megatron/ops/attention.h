#pragma once

#include "megatron/ops/qkv.h"

namespace megatron::ops {

struct AttentionOptions {
  int64_t batch = 1;                      // sequences of equal length, one after the other
  Tensor cu_queries, cu_keys;             // int32 [sequences + 1]: packed sequences instead; keys as queries
                                          // where left out
  int64_t max_queries = 0, max_keys = 0;  // longest packed sequence
  Tensor blocks, key_lengths;             // int32 [sequences, most] and [sequences]: k and v are pools, of
                                          // which each packed sequence of queries has blocks
  int64_t block_size = 0;
  double scale = 0;  // 0: 1/√d
  bool causal = true;
  int64_t window_left = -1, window_right = -1;  // keys seen before and after the query's own; -1: all
  double softcap = 0;
  Weight sinks;  // [heads], or more of which q's heads are those from sinks_begin on
  int64_t sinks_begin = 0;
  Tensor bias;  // [1 or batch, 1 or heads, queries, keys], added after softcap; may be on the tape
  double dropout = 0;
  RngKey dropout_key;
  AttentionOffsets offsets;  // global_heads 0: all heads are here
  // As lse, [heads], or more of which q's heads are those from max_scores_begin on: become the larger of
  // themselves and the largest scores of the forward pass. Not with sinks or blocks.
  Tensor max_scores;
  int64_t max_scores_begin = 0;
};

struct AttentionResult {
  Tensor o;    // [query tokens, heads, dv]
  Tensor lse;  // [heads, query tokens], fp32 or fp64; carries no gradient
};

// softmax(scale · q kᵀ …) v in O(tokens) memory. q [query tokens, heads, d], k [key tokens, kv heads, d],
// v [key tokens, kv heads, dv], each with unit stride in its last dimension; heads is a multiple of kv heads.
// With more keys than queries, the last query stands at the last key.
AttentionResult attention(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options = {});

// Attention of a fused projection qkv [tokens, shape.columns()] with itself, queries and keys turned. What
// split_qkv and attention give, for a shape that is even(): q, k and v are read where they lie and their
// gradients written where they will be read, so values and their gradients are never moved. Turns in qkv's
// own memory where nobody else holds it (move it in), in a copy otherwise.
AttentionResult fused_attention(RankContext& ctx, Tensor qkv, const QkvShape& shape, const Rotation& rotation,
                                const AttentionOptions& options = {});

struct AttentionGrads {
  Tensor dq, dk, dv;
};

// For nodes that put attention together from pieces; these record nothing. The gradients of attention over
// some of the keys, from o, lse and the gradient of o over all of them; the gradient of the sinks is added to
// dsinks where given.
AttentionGrads attention_backward(RankContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionResult& result, const Tensor& grad_o,
                                  const AttentionOptions& options, const Tensor& dsinks = {});
// The part of the sinks' gradient that belongs to heads from `begin` on, ready to be added to; undefined
// where the sinks are not trained.
Tensor sinks_gradient(RankContext& ctx, const Weight& sinks, int64_t begin, int64_t heads);

}  // namespace megatron::ops
