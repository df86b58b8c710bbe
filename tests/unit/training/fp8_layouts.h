#pragma once

#include <fmt/format.h>

#include <string>

#include "megatron/config/config.h"
#include "megatron/parallel/parallel_groups.h"

namespace megatron::testing {

// Layouts under which training in fp8 is compared with one rank.
struct Fp8Layout {
  int tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false, overlap = false;

  Config of(Config config) const {
    config.parallel.tensor_model_parallel_size = tp;
    config.parallel.pipeline_model_parallel_size = pp;
    config.parallel.sequence_parallel = sequence_parallel;
    config.parallel.tp_comm_overlap = overlap;
    return config;
  }
  ParallelSizes sizes() const { return {.world = tp * pp * dp, .tp = tp, .pp = pp}; }
  std::string name() const {
    return fmt::format("tp {} pp {} dp {}{}", tp, pp, dp,
                       overlap             ? " overlap"
                       : sequence_parallel ? " sp"
                                           : "");
  }
};

constexpr Fp8Layout kFp8Layouts[] = {{.tp = 2},
                                     {.tp = 2, .sequence_parallel = true},
                                     {.tp = 2, .sequence_parallel = true, .overlap = true},
                                     {.pp = 2},
                                     {.dp = 2},
                                     {.tp = 2, .pp = 2, .sequence_parallel = true, .overlap = true}};

}  // namespace megatron::testing
