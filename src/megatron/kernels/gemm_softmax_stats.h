#pragma once

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/cross_entropy.h"

namespace megatron {

// LM-head GEMM whose epilogue computes softmax statistics: stats.logits [rows, columns] = a [rows, k] · bᵀ,
// with b [columns, k], and the statistics of the rounded logits, which are not read again. Columns from
// `valid` on are −∞. Returns false, and has done nothing, where the device has no such kernel for these
// tensors.
struct GemmSoftmaxStatsArgs {
  Tensor a, b;
  CrossEntropyStatsArgs stats;
  Tensor tiles;  // fp32 workspace of at least gemm_softmax_stats_tiles() elements
};
bool gemm_softmax_stats(const KernelContext& ctx, const GemmSoftmaxStatsArgs& args);

// Maximum and sum for each row and tile of 256 columns.
inline int64_t gemm_softmax_stats_tiles(int64_t rows, int64_t columns) {
  return (columns + 255) / 256 * rows * 2;
}

}  // namespace megatron
