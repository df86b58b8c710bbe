#pragma once

#include <cstdint>
#include <vector>

namespace megatron {

// Samples [first, first + count) of a global batch: one micro-batch.
struct Share {
  int64_t first = 0, count = 0;
  bool operator==(const Share&) const = default;
};

// How the replicas share a global batch: the micro-batches of each. Replicas may have unequal numbers of
// them.
struct Shares {
  std::vector<std::vector<Share>> of_replica;

  // Equally many micro-batches for each, in order. An Error where they do not divide the batch.
  static Shares even(int64_t global_batch, int64_t micro_batch, int replicas);
  // As many micro-batches for each replica as its weight, its number of ranks say, allows: `multiple` at a
  // time, one such round for each at least, the next always for whom it delays least.
  static Shares weighted(int64_t global_batch, int64_t micro_batch, const std::vector<int>& weights,
                         int64_t multiple = 1);
  int64_t batches() const;  // micro-batches of all replicas
  int64_t samples() const;
};

}  // namespace megatron
