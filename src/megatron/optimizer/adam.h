#pragma once

#include <span>
#include <vector>

#include "megatron/nn/parameter.h"

namespace megatron {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  bool decoupled = true;
};

// Adam or AdamW over the parameters of one rank, each with an fp32 master copy where the model is narrower.
// Biases and norms (one dimension) are not decayed.
class Adam {
 public:
  Adam(RankContext& ctx, std::vector<Parameter*> parameters, const AdamOptions& options);

  // One update with the gradients in main_grad times `gradient_scale` (one element, optional).
  void step(RankContext& ctx, double lr, const Tensor& gradient_scale = {});

  // The state of a parameter, for checkpoints.
  struct State {
    Parameter* parameter;
    Tensor master;  // undefined where the parameter itself is wide enough
    Tensor first, second;
  };
  std::span<const State> states() const { return states_; }
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  AdamOptions options_;
  std::vector<State> states_;
  int64_t steps_ = 0;
};

}  // namespace megatron
