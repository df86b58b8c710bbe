#pragma once

#include <cstdint>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/config/resolve/batch_steps.h"

namespace megatron {

// The global batch size as a function of the samples consumed so far: constant, growing in steps
// (--step-batch-size-schedule), or linearly (--rampup-batch-size).
class BatchSchedule {
 public:
  // A ConfigError where a size is no whole number of micro-batches of all replicas.
  BatchSchedule(const Config& config, int64_t data_parallel);

  int64_t at(int64_t consumed) const;
  // Iterations that consume this many samples; a last one that would need more is left out.
  int64_t iterations_of(int64_t samples) const;
  int64_t samples_of(int64_t iterations) const;

 private:
  // Visits (consumed before, size, iterations) of each size in turn while `visit` returns true.
  template <class Visit>
  void walk(Visit&& visit) const;

  std::vector<BatchSize> sizes_;  // ascending
};

}  // namespace megatron
