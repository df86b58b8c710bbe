#pragma once

#include <span>

#include "megatron/autograd/rank_context.h"
#include "megatron/nn/seq_info.h"
#include "megatron/parallel/context/context_parallel.h"

namespace megatron {

// The rows of a micro-batch, `rows` of `length` tokens each. `documents` are the lengths of what is packed
// into them, one row after the other; none: every row is one sequence. `first`: the position of each
// sequence's first token, where others came before it. `positions`: of every token, where they do not count
// from there.
struct TokenRows {
  int64_t rows = 1, length = 1;
  std::vector<int64_t> documents = {};
  int64_t first = 0;
  std::vector<int64_t> positions = {};

  std::vector<int64_t> sequences() const;  // lengths of all, in order
  bool operator==(const TokenRows&) const = default;
};

// Which tokens of consecutive sequences of these lengths rank `rank` of `ranks` holds, in order: of each
// sequence chunk `rank` and chunk 2 · ranks − 1 − rank of 2 · ranks.
std::vector<int64_t> zigzag_tokens(std::span<const int64_t> lengths, int rank, int ranks);

// This rank's share of the rows: the tokens that it holds, their positions in their sequences, and how the
// group's ranks belong together.
std::vector<int64_t> held_tokens(const TokenRows& rows, const ContextParallel& context);
std::vector<int64_t> held_positions(const TokenRows& rows, const ContextParallel& context);
SeqInfo held_sequences(RankContext& ctx, const TokenRows& rows, const ContextParallel& context);

// int64 [sequences, keys]: 1 for the first lengths[i] keys of sequence i, 0 for padding.
Tensor padding_mask(RankContext& ctx, std::span<const int64_t> lengths, int64_t keys);
// What hides the keys where a mask is less than 1 when it is added to scores: [sequences, 1, queries, keys].
Tensor mask_bias(RankContext& ctx, const Tensor& mask, int64_t queries, DType dtype);

}  // namespace megatron
