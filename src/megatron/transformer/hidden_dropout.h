#pragma once

#include "megatron/nn/seq_info.h"
#include "megatron/ops/dropout.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {

// Dropout on the residual stream, drawn by the token's place in the global batch: with sequence
// and context parallelism, too, each token gets the numbers it would get on one rank.
inline Tensor hidden_dropout(RankContext& ctx, const Tensor& x, double p, const SeqInfo& seq, int64_t layer,
                             int site, const TensorParallel& tp) {
  if (p == 0 || !seq.training) return x;
  int64_t begin = tp.splits_tokens() ? x.size(0) * tp.rank() : 0;  // in the tokens of this context rank
  ops::DropoutOffsets offsets{.row_begin = seq.batch_begin * seq.row_length, .global_columns = x.size(1)};
  if (seq.token_index)
    offsets.rows = rows_from(ctx, seq.token_index, begin, x.size(0));
  else
    offsets.row_begin += begin;
  return ops::dropout(ctx, x, p, dropout_key(seq, layer, site), offsets);
}

}  // namespace megatron
