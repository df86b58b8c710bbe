#pragma once

#include "megatron/datasets/sample_order.h"
#include "megatron/datasets/sft/packed_sequences.h"

namespace megatron {

// What the rows of packed micro-batches must fit.
struct PackedBatchOptions {
  int64_t length = 0;          // of the longest sequence: what the run is planned for
  int64_t multiple = 1;        // of each sequence, for context-parallel ranks
  int64_t batch_multiple = 1;  // of all together, for tensor-parallel ranks
  int64_t pad = 0, vocab_size = 0;
};

// The sequences of each micro-batch end to end in one row, whose length varies; attention stays within each.
// Padding is a last sequence of weight 0.
std::shared_ptr<const BatchSource> packed_batches(std::function<SftTokens(int64_t)> sample, SampleOrder order,
                                                  const PackedBatchOptions& options);

}  // namespace megatron
