#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

// Turns a linear index over a shape into offsets of N operands with strides of their own.
template <int N>
struct StridedIndex {
  int rank = 0;
  int64_t size[Shape::kMaxRank] = {};
  int64_t stride[N][Shape::kMaxRank] = {};

  // Neighbouring dimensions that every operand walks as one are joined.
  StridedIndex(const Shape& shape, std::initializer_list<const Shape*> strides) {
    for (int d = 0; d < shape.rank(); ++d) {
      if (shape[d] == 1) continue;
      bool joins = rank > 0;
      int i = 0;
      for (const Shape* s : strides) joins = joins && stride[i++][rank - 1] == (*s)[d] * shape[d];
      if (!joins) ++rank;
      size[rank - 1] = joins ? size[rank - 1] * shape[d] : shape[d];
      i = 0;
      for (const Shape* s : strides) stride[i++][rank - 1] = (*s)[d];
    }
  }

  __device__ void offsets(int64_t linear, int64_t (&offset)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) offset[i] = 0;
    for (int d = rank - 1; d >= 0; --d) {
      int64_t rest = linear / size[d], index = linear - rest * size[d];
#pragma unroll
      for (int i = 0; i < N; ++i) offset[i] += index * stride[i][d];
      linear = rest;
    }
  }
};

}  // namespace megatron::cuda
