#pragma once

#include <limits>

#include "megatron/kernels/cuda/activation_math.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::cuda {

// Statistics, loss and gradient in one.
void cross_entropy(const KernelContext& ctx, const CrossEntropyArgs& args);

// Running maximum and Σ exp(x − maximum).
template <class C>
struct MaxSum {
  C maximum = -std::numeric_limits<C>::infinity(), sum = 0;
};

template <class C>
struct MergeMaxSum {
  __device__ MaxSum<C> operator()(MaxSum<C> a, MaxSum<C> b) const {
    C maximum = a.maximum > b.maximum ? a.maximum : b.maximum;
    if (maximum == -std::numeric_limits<C>::infinity()) return {};
    return {maximum, a.sum * exp_of(a.maximum - maximum) + b.sum * exp_of(b.maximum - maximum)};
  }
};

template <class C>
__device__ MaxSum<C> warp_merge(MaxSum<C> value) {
  for (int offset = 16; offset; offset /= 2)
    value = MergeMaxSum<C>{}(value, {__shfl_xor_sync(0xffffffffu, value.maximum, offset),
                                     __shfl_xor_sync(0xffffffffu, value.sum, offset)});
  return value;
}

}  // namespace megatron::cuda
