#pragma once

#include "megatron/tensor/tensor.h"

namespace megatron {

struct Cost {
  double flops = 0, bytes = 0;  // arithmetic, and memory read plus written
};

enum class Phase : uint8_t { Forward, BackwardData, BackwardWeight, Other };

// Told of every op as it runs: for plans, speed-of-light figures and traces.
class Tracer {
 public:
  virtual ~Tracer() = default;
  virtual void op(const char* name, Phase phase, const Cost& cost) = 0;
};

}  // namespace megatron
