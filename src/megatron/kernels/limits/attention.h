#pragma once

#include "megatron/kernels/attention.h"
#include "megatron/kernels/limits/refusal.h"

namespace megatron {
namespace limits {

inline constexpr int kMaxHeadDim = 256;       // of all kernels that take gradients
inline constexpr int kMaxPagedHeadDim = 512;  // of values in blocks: the latent vectors of a cache

// Attention by one thread per score, which takes every number format: a block holds a tile of keys and values
// (or of queries and gradients), and a row of the others for each of its warps.
inline constexpr int kAttentionTile = 32, kAttentionWarps = 8;

// Shared memory in bytes, where sums are of `element_bytes`.
constexpr int64_t attention_memory(int64_t qk_head_dim, int64_t v_head_dim, int64_t element_bytes) {
  return element_bytes * (kAttentionTile * (qk_head_dim + 1 + v_head_dim) + kAttentionWarps * qk_head_dim);
}
constexpr int64_t attention_backward_memory(int64_t qk_head_dim, int64_t v_head_dim, int64_t element_bytes) {
  const int64_t head_dims = qk_head_dim + v_head_dim;
  return element_bytes * (kAttentionTile * (head_dims + 2) + kAttentionWarps * head_dims);
}

}  // namespace limits

std::optional<Refusal> refuse(const AttentionArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const AttentionBackwardArgs& args, const GpuFacts& gpu);

}  // namespace megatron
