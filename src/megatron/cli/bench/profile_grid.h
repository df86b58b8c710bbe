#pragma once

#include <string>
#include <vector>

#include "megatron/cli/bench/bench_cases.h"

namespace megatron {

// A small model that is trained for the times of its ops.
struct GridCase {
  TrainCase train;
  BenchRun run;
  std::string name() const;
};

// Shapes that span what is trained on one GPU, or, smaller, on a CPU: widths, lengths, heads, vocabularies,
// experts, precisions. Two layers are enough, for all others run the same ops.
std::vector<GridCase> profile_grid(bool cuda);

}  // namespace megatron
