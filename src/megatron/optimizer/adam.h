#pragma once

#include "megatron/kernels/optimizer.h"
#include "megatron/optimizer/optimizer.h"

namespace megatron {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  bool decoupled = true;
  ParameterGroups groups = {};  // their scale is one of epsilon too
  Masters masters = Masters::Whole;
  DType first = DType::F32, second = DType::F32;  // of the moments, where parameters are not fp64
};

// Adam or AdamW.
class Adam final : public Optimizer {
 public:
  Adam(RankContext& ctx, std::vector<ParameterSlice> slices, const AdamOptions& options);

  void step(RankContext& ctx, const Rates& rates, const Tensor& gradient_scale = {},
            const Tensor& gate = {}) override;
  std::vector<OptimizerTensor> state(RankContext& ctx) const override;

 private:
  static void trace_step(RankContext& ctx, std::span<const AdamTensor> tensors);

  AdamOptions options_;
  std::vector<Tensor> first_, second_;
};

}  // namespace megatron
