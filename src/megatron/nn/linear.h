#pragma once

#include "megatron/nn/parameter.h"
#include "megatron/ops/linear.h"

namespace megatron {

// ops::call_linear() with a parameter, in its number format and with its adapter.
ops::LinearResult apply_linear(RankContext& ctx, const Tensor& x, Parameter& weight,
                               ops::LinearCall call = {});

}  // namespace megatron
