#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// The micro-batches of one data-parallel rank, as sample numbers, in the order of training.
using SamplerBatches = std::vector<std::vector<int64_t>>;

// What all ranks share: of each step every rank takes micro_batch samples.
struct SamplerShape {
  int64_t total = 0, consumed = 0;  // samples there are, and those of earlier steps
  int64_t micro_batch = 1, ranks = 1;
};

// One micro-batch in global order: step `step` after the consumed samples, rank `rank`. Shorter or empty
// where the data ends.
std::vector<int64_t> sequential_batch(const SamplerShape& shape, int64_t rank, int64_t step);
// All of them. Without drop_last the rest that fills no step is dealt out the same way.
SamplerBatches sequential_batches(const SamplerShape& shape, int64_t rank, bool drop_last = true);

// The rest of the epoch that `consumed` lies in, shuffled by its number. With data sharding each rank keeps
// to a part of its own.
SamplerBatches cyclic_batches(const SamplerShape& shape, int64_t rank, bool data_sharding = true);

// One sample a step and rank, all samples once.
SamplerBatches full_validation_batches(int64_t total, int64_t rank, int64_t ranks);

// Every micro-batch of a global batch as one list, for packing across ranks.
SamplerBatches hybrid_batches(const SamplerShape& shape, int64_t rank, int64_t global_batch);

}  // namespace megatron
