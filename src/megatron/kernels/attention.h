#pragma once

#include "megatron/tensor/philox.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Where the local piece of attention stands in the global one, so that masks and dropout do not depend on the
// layout.
struct AttentionOffsets {
  int64_t batch_begin = 0, head_begin = 0, global_heads = 0;
  // Where each sequence is cut into runs of equal length: the queries given are run query_chunk of as many
  // runs as their own length makes, the keys run key_chunk likewise. -1: the last query stands at the last
  // key.
  int64_t query_chunk = -1, key_chunk = 0;
  // Packed sequences: the tokens of one row of the batch, and how many runs of the queries' length a sequence
  // has. Dropout then goes by row and by place in the row. 0: every sequence is a row of its own.
  int64_t row_length = 0, query_chunks = 1;
};

// How far in front of the keys given the queries given stand: query i is at key i + this.
MEGATRON_HOST_DEVICE inline int64_t attention_shift(const AttentionOffsets& offsets, int64_t queries,
                                                    int64_t keys) {
  return offsets.query_chunk < 0 ? keys - queries : offsets.query_chunk * queries - offsets.key_chunk * keys;
}

// The row of a sequence in the global batch, and where in that row its queries and keys begin.
struct AttentionOrigin {
  int64_t row, query, key;
};
MEGATRON_HOST_DEVICE inline AttentionOrigin attention_origin(const AttentionOffsets& offsets,
                                                             int64_t sequence, int64_t first_query,
                                                             int64_t queries, int64_t keys) {
  int64_t query = offsets.query_chunk > 0 ? offsets.query_chunk * queries : 0, key = offsets.key_chunk * keys;
  if (offsets.row_length == 0) return {offsets.batch_begin + sequence, query, key};
  int64_t start = first_query * offsets.query_chunks, row = start / offsets.row_length;
  start -= row * offsets.row_length;
  return {offsets.batch_begin + row, start + query, start + key};
}

// softmax(scale · q kᵀ (+ bias), masked) v without ever holding the score matrix. Tokens are batch-major:
// `batch` sequences of equal length, or, with cu_queries/cu_keys (int32 [batch + 1]), packed sequences of any
// length. With `blocks`, keys and values are rows of a pool, of which each sequence has blocks: its key i is
// row blocks[sequence, i / block_size] · block_size + i % block_size, and key_lengths says how many it has; a
// query's result then does not depend on the other queries. Query heads share key/value heads in groups
// (GQA). With `causal`, the last query of a sequence sees its last key, so that queries may stand against a
// longer cache. A query that sees no key gets 0 and, where there is no sink, an lse of −∞. Packed sequences
// cover all tokens of q and k.
struct AttentionArgs {
  Tensor q, k,
      v;  // [query tokens, heads, d], [key tokens, kv heads, d], [key tokens, kv heads, dv]; unit stride in d
  Tensor o;    // [query tokens, heads, dv]
  Tensor lse;  // [heads, query tokens], fp32 (fp64 for fp64): log of the softmax denominator, sink included
  // [heads], as lse, optional, without sinks or blocks: becomes the larger of itself and a head's largest
  // score.
  Tensor max_scores;
  int64_t batch = 1;
  Tensor cu_queries, cu_keys;             // optional, both or neither
  int64_t max_queries = 0, max_keys = 0;  // longest sequence where packed
  Tensor blocks, key_lengths;             // int32 [batch, most] and [batch], optional; with cu_queries alone
  int64_t block_size = 0;
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
  AttentionOffsets offsets;
};

struct AttentionBackwardArgs {
  AttentionArgs forward;  // with o and lse as the forward call left them
  Tensor grad_o;
  Tensor dq, dk, dv;          // as q, k, v
  Tensor dsinks, dbias;       // optional: [heads], and bias's shape, contiguous; both fp32 (fp64 for fp64)
  bool accumulate = false;    // dsinks += …
  bool deterministic = true;  // the same bits each run; otherwise sums may come in any order, which is faster
};

// Joins attention over other keys to what was gathered so far: o and lse become those of attention over both.
struct AttentionMergeArgs {
  Tensor o, lse;            // [tokens, heads, dv] contiguous and [heads, tokens], fp32 (fp64 for fp64)
  Tensor part_o, part_lse;  // as the attention kernel leaves them; unit stride in dv
};

// Whether (row, head, query, key), in global coordinates, survives dropout: one Philox word each.
MEGATRON_HOST_DEVICE inline bool attention_keeps(RngKey key, int64_t global_heads, double p, int64_t row,
                                                 int64_t head, int64_t query, int64_t k) {
  uint64_t index = ((static_cast<uint64_t>(row) * global_heads + head) << 40) ^
                   (static_cast<uint64_t>(query) << 20) ^ static_cast<uint64_t>(k);
  return Philox::at(key, index >> 2).uniform(static_cast<int>(index & 3)) >= static_cast<float>(p);
}

}  // namespace megatron
