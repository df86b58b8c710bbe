#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// Row ids[i] − first of the table for each i: [tokens] int64 ids to [tokens, hidden]. `first` is the
// vocabulary index of this rank's first row; ids that live elsewhere give zeros here, to be summed over the
// group. The table's gradient is summed in the order of the tokens, whatever the number of threads. An id
// outside the whole vocabulary (vocab_size; 0: the table is all of it) is refused on the CPU, and elsewhere
// gives zeros.
Tensor embedding(RankContext& ctx, const Weight& table, const Tensor& ids, int64_t first = 0,
                 int64_t vocab_size = 0);

// The same of a whole table, where some have no row: zeros for the id −1.
Tensor embedding_or_zeros(RankContext& ctx, const Weight& table, const Tensor& ids);

}  // namespace megatron::ops
