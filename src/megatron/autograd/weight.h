#pragma once

#include <functional>

#include "megatron/tensor/tensor.h"

namespace megatron {

struct RankContext;

// Where the gradient of one parameter gathers over micro-batches. `main_grad` is fp32 (fp64 in an fp64
// model; bf16 where that is asked for). Kernels add to it by their beta: `beta()` is 0 for the first
// contribution of a step, so that nothing needs zeroing.
class GradAccumulator {
 public:
  Tensor main_grad;
  std::function<void(RankContext&)> on_ready;         // all uses recorded so far have contributed
  std::function<void(RankContext&)> before_write;     // main_grad may have no memory until then
  std::function<void(RankContext&)> on_contribution;  // after every one

  // Where a kernel adds its contribution; to be asked for just before it runs.
  const Tensor& target(RankContext& ctx) {
    if (before_write) before_write(ctx);
    return main_grad;
  }
  double beta() const { return has_value_ ? 1.0 : 0.0; }
  bool has_value() const { return has_value_; }
  void expect_use() { ++pending_uses_; }  // at recording
  void contribute(RankContext& ctx);      // after a kernel wrote
  void wrote_early() {
    has_value_ = true;
  }  // a kernel wrote in the forward pass; contribute() follows in backward
  void start_step() { has_value_ = false; }  // the next contribution overwrites

 private:
  bool has_value_ = false;
  int pending_uses_ = 0;
};

// A parameter at the point of use: its value and, where it is trainable, the place for its gradient.
struct Weight {
  Tensor value;
  GradAccumulator* accumulator = nullptr;
  // Of narrow values (kernels/narrow_weight.h): […, rows, groups], for the groups of a row; or of 128 rows.
  Tensor scale = {};
  DType wide = DType::F32;  // of what was quantised

  bool defined() const { return value.defined(); }
  bool trainable() const { return accumulator != nullptr; }
};

}  // namespace megatron
