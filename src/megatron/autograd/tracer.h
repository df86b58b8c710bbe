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
  // Around a step, a micro-batch's pass, a module, a node, a collective: they nest.
  virtual void begin(const char* /*name*/) {}
  virtual void end() {}
};

// The range in which a rank, or its stream, waits for an operation of other ranks.
inline constexpr const char* kWaitRange = "wait";

// Names what happens within its life to whoever listens; null: nobody.
class TraceRange {
 public:
  TraceRange(Tracer* tracer, const char* name) : tracer_(tracer) {
    if (tracer_) tracer_->begin(name);
  }
  ~TraceRange() {
    if (tracer_) tracer_->end();
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Tracer* tracer_;
};

}  // namespace megatron
