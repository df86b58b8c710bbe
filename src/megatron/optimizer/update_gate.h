#pragma once

#include <limits>

#include "megatron/autograd/rank_context.h"

namespace megatron {

// Whether an update may be taken: bool [1] on the device, false where the loss or the norm of the gradients
// (fp64 [1] each) is NaN or infinite, or the norm above `limit`. Optimizers, expert biases and fp8 histories
// read it and change nothing where it is false, so that the host need not wait before they run.
Tensor update_gate(RankContext& ctx, const Tensor& loss, const Tensor& norm,
                   double limit = std::numeric_limits<double>::max());

}  // namespace megatron
