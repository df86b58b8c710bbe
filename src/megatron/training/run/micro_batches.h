#pragma once

#include <span>
#include <vector>

#include "megatron/parallel/context/sequences.h"

namespace megatron {

// The sequences of one data-parallel rank in one step, as this rank of its context-parallel group sees them.
class MicroBatches {
 public:
  // `tokens` is [micro-batches, size, length + 1]: each row is its own input and, shifted by one, its labels.
  // `lengths`: of each micro-batch's rows where they differ. `documents`: the lengths of what is packed into
  // each row; none: every row is one sequence.
  MicroBatches(std::span<const int64_t> tokens, int64_t size, int64_t length,
               std::span<const int64_t> lengths, std::span<const std::vector<int64_t>> documents,
               const ContextParallel& context);

  int64_t count() const { return static_cast<int64_t>(lengths_.size()); }
  TokenRows rows(int64_t microbatch) const;
  int64_t counted_labels(int64_t microbatch) const;  // of all context-parallel ranks, ignored ones left out
  Tensor inputs(RankContext& ctx, int64_t microbatch) const;  // token 0 where there is only an ignored label
  Tensor labels(RankContext& ctx, int64_t microbatch) const;

  // For multi-token prediction: what stands `depth` tokens further on in the
  // same sequence. Beyond its end ids are 0 and labels ignored.
  struct Mtp {
    Tensor ids, labels;
    int64_t counted_labels;  // of all context-parallel ranks
  };
  Mtp mtp(RankContext& ctx, int64_t microbatch, int64_t depth) const;

 private:
  std::vector<int64_t> held(int64_t microbatch, int64_t offset) const;

  std::span<const int64_t> tokens_;
  std::span<const std::vector<int64_t>> documents_;
  int64_t size_;
  std::vector<int64_t> lengths_, begins_;  // of each micro-batch's rows; of its tokens
  ContextParallel context_;
};

}  // namespace megatron
