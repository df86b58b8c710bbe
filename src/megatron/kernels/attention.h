#pragma once

#include "megatron/tensor/philox.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Where the local piece of attention stands in the global one, so that dropout does not depend on the layout.
struct AttentionPlace {
  int64_t batch_begin = 0, head_begin = 0, global_heads = 0, query_begin = 0, key_begin = 0, global_keys = 0;
};

// softmax(scale · q kᵀ (+ bias), masked) v without ever holding the score matrix. Tokens are batch-major:
// `batch` sequences of equal length, or, with cu_queries/cu_keys (int32 [batch + 1]), packed sequences of any
// length. Query heads share key/value heads in groups (GQA). With `causal`, the last query of a sequence sees
// its last key, so that queries may stand against a longer cache. A query that sees no key gets 0 and, where
// there is no sink, an lse of −∞. Packed sequences cover all tokens of q and k.
struct AttentionArgs {
  Tensor q, k,
      v;  // [query tokens, heads, d], [key tokens, kv heads, d], [key tokens, kv heads, dv]; unit stride in d
  Tensor o;    // [query tokens, heads, dv]
  Tensor lse;  // [heads, query tokens], fp32 (fp64 for fp64): log of the softmax denominator, sink included
  int64_t batch = 1;
  Tensor cu_queries, cu_keys;             // optional, both or neither
  int64_t max_queries = 0, max_keys = 0;  // longest sequence where packed
  double scale = 1;
  bool causal = true;
  int64_t window_left = -1;   // keys before the query's own position that it may see; -1: all
  int64_t window_right = -1;  // keys after it (not causal)
  double softcap = 0;         // 0: none; else scores become softcap · tanh(score / softcap)
  Tensor sinks;               // [heads]: a logit per head that takes part in the denominator; optional
  Tensor
      bias;  // [1 or batch, 1 or heads, queries, keys], added to scores after softcap; optional, not packed
  double dropout = 0;
  RngKey dropout_key;
  AttentionPlace place;
};

struct AttentionBackwardArgs {
  AttentionArgs forward;  // with o and lse as the forward call left them
  Tensor grad_o;
  Tensor dq, dk, dv;        // as q, k, v
  Tensor dsinks, dbias;     // optional: [heads], and bias's shape, contiguous; both fp32 (fp64 for fp64)
  bool accumulate = false;  // dsinks += …
};

// Whether (batch, head, query, key), in global coordinates, survives dropout: one Philox word each.
MEGATRON_HOST_DEVICE inline bool attention_keeps(RngKey key, const AttentionPlace& place, double p,
                                                 int64_t batch, int64_t head, int64_t query, int64_t k) {
  uint64_t row =
      (static_cast<uint64_t>(place.batch_begin + batch) * place.global_heads + place.head_begin + head);
  uint64_t index = (row << 40) ^ (static_cast<uint64_t>(place.query_begin + query) << 20) ^
                   static_cast<uint64_t>(place.key_begin + k);
  return Philox::at(key, index >> 2).uniform(static_cast<int>(index & 3)) >= static_cast<float>(p);
}

}  // namespace megatron
