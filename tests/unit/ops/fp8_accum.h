#pragma once

#include <gtest/gtest.h>

#include "megatron/device/gpu_facts.h"
#include "megatron/kernels/limits/gpu.h"

namespace megatron::testing {

// By how much a GEMM of fp8 matrices may differ from an exact one of the same matrices, relative to its
// size. Hopper's tensor cores align the terms of a sum to the largest and keep some fourteen bits of each.
inline double sum_error(Device device) { return device.is_cuda() ? 0x1p-12 : 1e-6; }

// Whether the tests' device multiplies fp8 matrices, with a scale each or with scales of blocks.
inline bool multiplies_fp8(Device device, bool blocks) {
  if (!device.is_cuda()) return true;
  const int capability = gpu_facts().front().compute_capability;
  return blocks ? capability == limits::kBlockwiseFp8Capability : capability >= limits::kFp8Capability;
}

}  // namespace megatron::testing
