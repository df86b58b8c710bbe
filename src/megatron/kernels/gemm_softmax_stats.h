#pragma once

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/cross_entropy.h"

namespace megatron {

// The output layer and what cross entropy must know of whole rows, in one: stats.logits [rows, columns] =
// a [rows, k] · bᵀ, with b [columns, k], and the statistics of these logits as they are in memory, which need
// not be read for that. Logits of columns from `valid` on are −∞. Returns false, and has done nothing, where
// the device has no such kernel for these tensors.
struct GemmSoftmaxStatsArgs {
  Tensor a, b;
  CrossEntropyStatsArgs stats;
  Tensor tiles;  // fp32, of at least gemm_softmax_stats_tiles() elements: memory to work in
};
bool gemm_softmax_stats(const KernelContext& ctx, const GemmSoftmaxStatsArgs& args);

// Two numbers for each row of 256 columns.
inline int64_t gemm_softmax_stats_tiles(int64_t rows, int64_t columns) {
  return (columns + 255) / 256 * rows * 2;
}

}  // namespace megatron
