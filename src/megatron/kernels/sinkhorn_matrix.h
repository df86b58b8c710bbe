#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MEGATRON_HOST_DEVICE __host__ __device__
#else
#define MEGATRON_HOST_DEVICE
#endif

// One matrix of SinkhornArgs, as the CPU's and the GPU's kernels compute it. The sums that a matrix was
// divided by are kept, so that the way back undoes the divisions one by one.
namespace megatron {

template <class C>
struct SinkhornMatrix {
  int64_t n, iterations;
  C epsilon;

  // Numbers that forward() leaves for backward(): divisors of rows, then of columns, for each iteration.
  MEGATRON_HOST_DEVICE int64_t kept() const { return 2 * iterations * n; }

  template <class Exp>
  MEGATRON_HOST_DEVICE void forward(const C* logits, C* y, C* sums, Exp exp_of) const {
    for (int64_t i = 0; i < n; ++i) {
      C largest = logits[i * n];
      for (int64_t j = 1; j < n; ++j) largest = logits[i * n + j] > largest ? logits[i * n + j] : largest;
      for (int64_t j = 0; j < n; ++j) y[i * n + j] = exp_of(logits[i * n + j] - largest);
    }
    for (int64_t step = 0; step < iterations; ++step) {
      divide(y, n, 1, sums ? sums + 2 * step * n : nullptr);
      divide(y, 1, n, sums ? sums + (2 * step + 1) * n : nullptr);
    }
  }

  // y as forward() left it, which becomes what the logits' exponentials were; grad: of y, becomes that of
  // the logits.
  MEGATRON_HOST_DEVICE void backward(C* y, C* grad, const C* sums) const {
    for (int64_t step = iterations - 1; step >= 0; --step) {
      undo(y, grad, 1, n, sums + (2 * step + 1) * n);
      undo(y, grad, n, 1, sums + 2 * step * n);
    }
    for (int64_t i = 0; i < n * n; ++i) grad[i] *= y[i];
  }

 private:
  // Lines of elements `along` apart, which begin `across` apart.
  MEGATRON_HOST_DEVICE void divide(C* y, int64_t across, int64_t along, C* sums) const {
    for (int64_t line = 0; line < n; ++line) {
      C sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += y[line * across + i * along];
      if (sums) sums[line] = sum;
      const C divisor = sum < epsilon ? epsilon : sum;
      for (int64_t i = 0; i < n; ++i) y[line * across + i * along] /= divisor;
    }
  }

  // A divisor that is a sum pulls on all of its line; epsilon does not.
  MEGATRON_HOST_DEVICE void undo(C* y, C* grad, int64_t across, int64_t along, const C* sums) const {
    for (int64_t line = 0; line < n; ++line) {
      const bool fixed = sums[line] < epsilon;
      const C divisor = fixed ? epsilon : sums[line];
      C pull = 0;
      for (int64_t i = 0; i < n; ++i) pull += grad[line * across + i * along] * y[line * across + i * along];
      for (int64_t i = 0; i < n; ++i) {
        C& g = grad[line * across + i * along];
        g = (g - (fixed ? C(0) : pull)) / divisor;
        y[line * across + i * along] *= divisor;
      }
    }
  }
};

}  // namespace megatron
