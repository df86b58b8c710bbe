#pragma once

#include <optional>
#include <string>

#include "megatron/config/config.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron {

// Megatron-LM's closed formulas for bf16 with Adam, in bytes on the most loaded rank. `plan` measures a step
// instead; these are for comparison with Megatron-LM's own figures.
struct TheoreticalMemory {
  double weights_and_optimizer = 0, activations = 0;

  // Megatron-LM's line, in MiB, with a blank line behind it.
  std::string line() const;
};

// Parameters, gradients and optimizer states.
double theoretical_weight_bytes(const Config& config, const ParallelSizes& sizes);
// Activations of the first stage under sequence parallelism and selective recomputation. `microbatches`:
// of a step, where it is known.
double theoretical_activation_bytes_sp(const Config& config, const ParallelSizes& sizes,
                                       std::optional<int64_t> microbatches);
// Activations of the first stage otherwise.
double theoretical_activation_bytes_no_sp(const Config& config, const ParallelSizes& sizes,
                                          std::optional<int64_t> microbatches);

// Nothing for hybrid models, for which Megatron-LM has no formula.
std::optional<TheoreticalMemory> theoretical_memory(const Config& config, const ParallelSizes& sizes,
                                                    std::optional<int64_t> microbatches);

}  // namespace megatron
