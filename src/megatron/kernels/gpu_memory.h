#pragma once

#include <span>

#include "megatron/base/dtype.h"
#include "megatron/device/stream.h"

namespace megatron {

// What process groups do to GPU memory, in the order of a stream. Implemented by kernels/cuda, or by
// kernels/none in a build without CUDA.

void copy_on_gpu(const Stream& stream, void* target, const void* source, size_t bytes);

enum class Combination : uint8_t { Sum, Average, Maximum, Minimum };

struct CombineArgs {  // outputs[*][i] = inputs[0][i] ∘ inputs[1][i] ∘ …, in that order; an input may be an
                      // output
  Combination kind;
  DType dtype;
  int64_t n;
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
};
void combine_on_gpu(const Stream& stream, const CombineArgs& args);

// Lets every one of these GPUs reach the others' memory; an Error where the machine has no way to.
void let_gpus_reach_each_other(std::span<const int> gpus);

}  // namespace megatron
