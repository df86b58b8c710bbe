#pragma once

#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// Rows go through the matrix of the expert that their place between the offsets says (LinearCall::offsets).
std::shared_ptr<const LinearFormat> grouped_format(const Tensor& offsets);

}  // namespace megatron::ops
