#pragma once

#include "megatron/autograd/rank_context.h"
#include "megatron/parallel/tensor/tensor_parallel.h"

namespace megatron {

// Which rows of a vocabulary a rank holds. Kernels know one run of ids; where a rank's rows are several runs,
// ids are first renamed so that they are one.
class VocabularyRows {
 public:
  VocabularyRows(const TensorParallel& tp, int64_t vocabulary);

  // The first of this rank's ids, as renamed() gives them; `rows`: of its table, padding included.
  int64_t begin(int64_t rows) const { return table_.empty() && begin_ < 0 ? rows * rank_ : begin_; }
  // Ids of other ranks get one that no rank holds, ignored ones the id ignored().
  Tensor renamed(RankContext& ctx, const Tensor& ids);
  int64_t ignored(int64_t ignore_index) const { return table_.empty() ? ignore_index : 0; }

 private:
  int rank_;
  int64_t vocabulary_, begin_ = -1;
  std::vector<int64_t> table_;  // [vocabulary]: the new name of each id; empty: its own
  Tensor on_device_;
};

}  // namespace megatron
