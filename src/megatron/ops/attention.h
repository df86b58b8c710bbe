#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct AttentionOptions {
  int64_t batch = 1;                      // sequences of equal length, one after the other
  Tensor cu_queries, cu_keys;             // int32 [sequences + 1]: packed sequences instead; keys as queries
                                          // where left out
  int64_t max_queries = 0, max_keys = 0;  // longest packed sequence
  double scale = 0;                       // 0: 1/√d
  bool causal = true;
  int64_t window_left = -1, window_right = -1;  // keys seen before and after the query's own; -1: all
  double softcap = 0;
  Weight sinks;  // [heads]
  Tensor bias;   // [1 or batch, 1 or heads, queries, keys], added after softcap; may be on the tape
  double dropout = 0;
  RngKey dropout_key;
  AttentionPlace place;  // global_heads 0: all heads are here
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

}  // namespace megatron::ops
