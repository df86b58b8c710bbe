#pragma once

#include <limits>

#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {

template <class C>
inline constexpr C kLowest = -std::numeric_limits<C>::infinity();

// Online softmax statistics: running maximum and Σ exp(x − maximum).
template <class C>
struct OnlineSoftmax {
  C maximum = kLowest<C>, sum = 0;
};

template <class C>
struct MergeOnlineSoftmax {
  __device__ OnlineSoftmax<C> operator()(OnlineSoftmax<C> a, OnlineSoftmax<C> b) const {
    C maximum = a.maximum > b.maximum ? a.maximum : b.maximum;
    // Avoid inf − inf, keep NaN.
    if (a.maximum == kLowest<C> && b.maximum == kLowest<C>) return {maximum, a.sum + b.sum};
    return {maximum, a.sum * exp_of(a.maximum - maximum) + b.sum * exp_of(b.maximum - maximum)};
  }
};

template <class C>
__device__ OnlineSoftmax<C> warp_merge(OnlineSoftmax<C> value) {
  for (int offset = 16; offset; offset /= 2)
    value = MergeOnlineSoftmax<C>{}(value, {__shfl_xor_sync(0xffffffffu, value.maximum, offset),
                                            __shfl_xor_sync(0xffffffffu, value.sum, offset)});
  return value;
}

}  // namespace megatron::cuda
