#pragma once

#include "megatron/optimizer/optimizer.h"

namespace megatron {

struct SgdOptions {
  double momentum = 0.9, weight_decay = 0.01;
  ParameterGroups groups = {};
};

// Gradient descent with momentum; decay joins the gradient.
class Sgd final : public Optimizer {
 public:
  Sgd(RankContext& ctx, std::vector<ParameterSlice> slices, const SgdOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state() const override;

 private:
  SgdOptions options_;
  std::vector<Tensor> momenta_;  // none without momentum
};

}  // namespace megatron
