#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;  // of the last two dimensions
  double alpha = 1;
};

// alpha · a · b of two activations: [m, k] · [k, n], or one GEMM per index of the first dimension of
// [batch, m, k] and [batch, k, n].
Tensor matmul(RankContext& ctx, const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

}  // namespace megatron::ops
