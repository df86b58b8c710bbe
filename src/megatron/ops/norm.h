#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct NormOptions {
  NormKind kind = NormKind::Rms;
  double epsilon = 1e-5;
  bool zero_centered = false;  // the weight is stored as gamma − 1
};

// RMSNorm or LayerNorm over the last dimension of x. weight [hidden] optional; bias [hidden] optional, for
// LayerNorm.
Tensor norm(RankContext& ctx, const Tensor& x, const Weight& weight, const Weight& bias = {},
            const NormOptions& options = {});

struct NormWithSum {
  Tensor y, sum;
};

// sum = x + residual and y = norm(sum), in one pass.
NormWithSum norm_with_residual(RankContext& ctx, const Tensor& x, const Tensor& residual,
                               const Weight& weight, const Weight& bias = {},
                               const NormOptions& options = {});

}  // namespace megatron::ops
