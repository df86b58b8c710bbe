#pragma once

#include <algorithm>
#include <array>

#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {

// A walk over N operands of one shape with strides of their own. Dimensions that lie end to end in every
// operand are joined, so that the rows of the walk are as long as they can be.
template <int N>
struct StridedWalk {
  using Offsets = std::array<int64_t, N>;

  int rank = 0;
  int64_t total = 1;
  std::array<int64_t, Shape::kMaxRank> sizes{};  // from the innermost dimension
  std::array<Offsets, Shape::kMaxRank> strides{};

  StridedWalk(const Shape& shape, const std::array<const Shape*, N>& operands) {
    for (int d = shape.rank() - 1; d >= 0; --d) {
      total *= shape[d];
      if (shape[d] == 1) continue;
      Offsets step;
      for (int i = 0; i < N; ++i) step[i] = (*operands[i])[d];
      bool joined = rank > 0;
      for (int i = 0; i < N && joined; ++i) joined = step[i] == strides[rank - 1][i] * sizes[rank - 1];
      if (joined) {
        sizes[rank - 1] *= shape[d];
      } else {
        sizes[rank] = shape[d];
        strides[rank++] = step;
      }
    }
    if (rank == 0) sizes[rank++] = 1;
  }

  const Offsets& inner() const { return strides[0]; }

  // Calls f(offsets of the first element, n) for runs of n elements along the innermost dimension.
  template <class F>
  void run(int64_t begin, int64_t end, F&& f) const {
    std::array<int64_t, Shape::kMaxRank> index{};
    Offsets offset{};
    int64_t rest = begin;
    for (int d = 0; d < rank; ++d) {
      index[d] = rest % sizes[d];
      rest /= sizes[d];
      for (int i = 0; i < N; ++i) offset[i] += index[d] * strides[d][i];
    }
    while (begin < end) {
      int64_t n = std::min(sizes[0] - index[0], end - begin);
      f(offset, n);
      begin += n;
      for (int i = 0; i < N; ++i) offset[i] -= index[0] * strides[0][i];
      index[0] = 0;
      for (int d = 1; d < rank; ++d) {
        for (int i = 0; i < N; ++i) offset[i] += strides[d][i];
        if (++index[d] < sizes[d]) break;
        for (int i = 0; i < N; ++i) offset[i] -= index[d] * strides[d][i];
        index[d] = 0;
      }
    }
  }

  template <class F>
  void run_parallel(const KernelContext& ctx, F&& f) const {
    ctx.pool.parallel_for(total, kGrain, [&](int64_t begin, int64_t end) { run(begin, end, f); });
  }
};

}  // namespace megatron::cpu::MEGATRON_ISA
