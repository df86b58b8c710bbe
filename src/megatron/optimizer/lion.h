#pragma once

#include "megatron/optimizer/optimizer.h"

namespace megatron {

struct LionOptions {
  double beta1 = 0.95, beta2 = 0.98, weight_decay = 0.01;
  ParameterGroups groups = {};
};

// Lion: each element moves by the learning rate, in the direction of the sign of momentum and gradient mixed.
// Weight decay is decoupled.
class Lion final : public Optimizer {
 public:
  Lion(RankContext& ctx, std::vector<ParameterSlice> slices, const LionOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;

 private:
  LionOptions options_;
  std::vector<Tensor> momenta_;
};

}  // namespace megatron
