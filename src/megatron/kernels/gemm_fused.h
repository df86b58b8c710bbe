#pragma once

#include <string>
#include <string_view>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/cross_entropy.h"

// GEMMs with more than a bias in their epilogue, which saves reading their output again, and the choice of
// algorithms that they share with ordinary ones. A device need not have them.
namespace megatron {

// Returns false, and has done nothing that lasts, where the device has no such kernel for these tensors, or
// autotuning found two kernels faster.
template <class Args>
using FusedKernel = bool (*)(const KernelContext&, const Args&);

template <class Args>
bool not_fused(const KernelContext&, const Args&) {
  return false;
}

// x [rows, 2 n] = a [rows, k] · bᵀ, where b [2 n, k] has the rows of the gate, then those of up;
// y [rows, n] = silu(gate) · up, of the gate and up that x holds.
struct GemmSwigluArgs {
  Tensor a, b, x, y;
  bool static_b = false;  // as GemmArgs::static_b
};

// dx [rows, 2 n], the gradient of x, where that of y is a [rows, k] · b [k, n]. dx may be x.
struct GemmSwigluBackwardArgs {
  Tensor a, b, x, dx;
};

// x [rows, n] = a [rows, k] · bᵀ (+ bias [n]), where b is [n, k]; y [rows, n] = gelu(x), by its tanh form, of
// the accumulators before rounding.
struct GemmGeluArgs {
  Tensor a, b, bias, x, y;
};

// dx [rows, n], the gradient of x, where that of y is a [rows, k] · b [k, n].
struct GemmGeluBackwardArgs {
  Tensor a, b, x, dx;
};

// LM-head GEMM whose epilogue computes softmax statistics: stats.logits [rows, columns] = a [rows, k] · bᵀ,
// with b [columns, k], and the statistics of the rounded logits, which are not read again. Columns from
// `valid` on are −∞.
struct GemmSoftmaxStatsArgs {
  Tensor a, b;
  CrossEntropyStatsArgs stats;
  Tensor tiles;  // fp32 workspace of at least gemm_softmax_stats_tiles() elements
};

// Maximum and sum for each row and tile of 256 columns.
inline int64_t gemm_softmax_stats_tiles(int64_t rows, int64_t columns) {
  return (columns + 255) / 256 * rows * 2;
}

// cuBLASLt proposes several algorithms for each shape. Off (the default) takes its first proposal, the same
// on every run. Otherwise the first large GEMM of each shape times them all, which waits for the device; a
// GEMM under graph capture is not timed. The fastest serves at once, or only after `use`, so that ranks can
// agree first.
enum class AutotuneMode { Off, UseAtOnce, UseLater };

// Autotuning of GEMMs. A device that has one algorithm for each shape keeps these defaults, which do nothing.
struct GemmAutotune {
  void (*set_mode)(const KernelContext&, AutotuneMode) = [](const KernelContext&, AutotuneMode) {};
  // The tuned algorithms as text: a header with the GPU's name and the version of cuBLASLt, then one line for
  // each shape, whose first word is the shape's key. A later run that uses it gets the same algorithms
  // untimed; text of another GPU or version is ignored.
  std::string (*tuned)(const KernelContext&) = [](const KernelContext&) { return std::string(); };
  void (*use)(const KernelContext&, std::string_view tuned) = [](const KernelContext&, std::string_view) {};
};

}  // namespace megatron
