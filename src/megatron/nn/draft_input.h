#pragma once

#include "megatron/nn/sequence_batch.h"

namespace megatron {

// What MTP layers read after a step of the decoder that they belong to: positions of that step, each with the
// token that follows it.
struct DraftInput {
  StepInput step;             // its tokens are those that follow; logits: 1 where a draft is wanted, else 0
  std::vector<int64_t> rows;  // of each sequence: its first among the step's tokens
  std::vector<std::vector<int64_t>> known;  // of each: tokens behind the last of `step`, for deeper layers

  std::vector<int64_t> packed() const;
  static DraftInput unpacked(const std::vector<int64_t>& numbers);
};

}  // namespace megatron
