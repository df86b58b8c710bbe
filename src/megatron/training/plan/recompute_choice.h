#pragma once

#include <string>
#include <vector>

#include "megatron/training/plan/plan.h"

namespace megatron {

// Which modules selective recompute forgets so that a step fits into memory, those first that take the least
// time for the memory they save, and the last of them in no more layers than it takes. Every candidate is
// planned as a whole step (plan.h), so that memory is what the step will need, and time what its ops cost at
// the device's speed.
struct RecomputeChoice {
  struct Module {
    std::string name;
    double saved_bytes = 0, seconds = 0;  // by itself, of the largest rank and of all of them
    int64_t layers = 0;                   // the first of each chunk in which it is chosen; 0: not at all
  };
  std::vector<Module> modules;           // the cheapest second per byte first; those that save nothing last
  int64_t layers = 0;                    // of the largest chunk
  double limit = 0;                      // bytes of a rank
  double kept_bytes = 0, bytes = 0;      // the largest rank's peak without and with what is chosen
  double kept_seconds = 0, seconds = 0;  // likewise

  std::string chosen() const;  // "mlp_act, mlp in 3 of 16 layers"; "nothing"
  std::string table() const;   // what was chosen and why
};

bool chooses_recompute(const Config& config);  // --recompute-modules auto

// Puts the chosen modules into the configuration. Throws a ConfigError with advice where all of them together
// do not suffice.
RecomputeChoice choose_recompute(Config& config, const ParallelSizes& sizes, DType dtype, double limit,
                                 const DeviceSpeed& speed);

}  // namespace megatron
