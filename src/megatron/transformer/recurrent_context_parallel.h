#pragma once

#include "megatron/nn/parameter.h"
#include "megatron/nn/seq_info.h"
#include "megatron/ops/weight_rows.h"
#include "megatron/parallel/context/context_parallel.h"

namespace megatron {

// How the ranks of a context-parallel group share a layer that carries a state along the sequence. A state
// cannot be cut, its heads can: ranks exchange tokens for heads, so that each has whole sequences of some of
// them, and back again. With one rank nothing moves.
class RecurrentContextParallel {
 public:
  // Columns of one kind: `heads` of `width` each. Those of shared heads, which other heads of a rank read,
  // may be fewer than the ranks: then several get the same.
  struct Part {
    int64_t heads = 1, width = 1;
    bool shared = false;
  };
  RecurrentContextParallel(const char* layer, const ContextParallel& context, std::vector<Part> parts);

  int64_t heads(size_t part) const;  // of this rank
  // How the tokens that whole() returns form sequences.
  SequenceRows rows(const SeqInfo& seq) const;
  // Matrices [held tokens, columns] whose columns together are all parts → [tokens of whole sequences, this
  // rank's columns] of each.
  std::vector<Tensor> whole(RankContext& ctx, const std::vector<Tensor>& matrices, const SeqInfo& seq) const;
  // y [tokens of whole sequences, columns of this rank's heads] → [held tokens, columns of all heads].
  Tensor held(RankContext& ctx, const Tensor& y, const SeqInfo& seq) const;
  // This rank's rows of a weight whose rows are the columns of parts [first, first + count); by heads alone
  // where `per_head`.
  Weight weight(RankContext& ctx, Parameter& parameter, size_t first, size_t count,
                bool per_head = false) const;

 private:
  struct Heads {
    int64_t begin, end;
  };
  Heads heads_of(const Part& part, int rank) const;

  ContextParallel context_;
  std::vector<Part> parts_;
};

}  // namespace megatron
