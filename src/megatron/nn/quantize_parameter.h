#pragma once

#include "megatron/nn/parameter.h"

namespace megatron {

// Weight-only quantisation (ops/quantized_weight.h) of a parameter that takes it; it is not trained
// afterwards. On a GPU experts, whose GEMMs are grouped, keep their dtype, and so do odd rows with int4.
// False: this one did.
bool quantize_parameter(RankContext& ctx, Parameter& parameter, DType dtype);

}  // namespace megatron
