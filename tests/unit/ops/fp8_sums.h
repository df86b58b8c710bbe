#pragma once

#include "megatron/device/device.h"

namespace megatron::testing {

// By how much a product of fp8 matrices may differ from an exact one of the same matrices, relative to its
// size. Hopper's tensor cores align the terms of a sum to the largest and keep some fourteen bits of each.
inline double sum_error(Device device) { return device.is_cuda() ? 0x1p-12 : 1e-6; }

}  // namespace megatron::testing
