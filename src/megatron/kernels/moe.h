#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

// Orders token copies by expert. experts int64 [tokens, k] (−1: dropped). Copy c = token · k + choice.
// offsets int32 [number of experts + 1]; row_of_copy int64 [tokens · k]: the row that copy c goes to, −1
// where dropped; copy_of_row its inverse, −1 for padding. Within an expert, tokens keep their order. Each
// expert's rows are padded to `alignment`.
struct ExpertSortArgs {
  Tensor experts, offsets, row_of_copy, copy_of_row;
  int64_t alignment = 1;
};

// out[row] = source[copy_of_row[row] / k], zero for padding.
struct PermuteArgs {
  Tensor source, copy_of_row, out;
  int64_t k = 1;
};

// out[token] = Σ over choices of weight[token, choice] · source[row_of_copy[token · k + choice]], dropped
// choices left out; weights optional (1), of any float dtype.
struct UnpermuteArgs {
  Tensor source, row_of_copy, weights, out;
  int64_t k = 1;
};

// dsource[row] = weight · grad[token]; dweights[token, choice] = ⟨grad[token], source[row]⟩. Padding rows
// and the weights of dropped choices become zero. dsource and dweights are optional, source goes with the
// latter.
struct UnpermuteBackwardArgs {
  Tensor grad, source, row_of_copy, copy_of_row, weights, dsource, dweights;
  int64_t k = 1;
};

}  // namespace megatron
