#pragma once

#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/limits/grid.h"
#include "megatron/kernels/limits/refusal.h"

namespace megatron {
namespace limits {

// Logits of a row whose gradient is made by the blocks of a grid's column: each thread has a few vectors, or
// single ones where rows do not lie well.
inline constexpr int kLogitThreads = 256, kLogitVectors = 4;
constexpr int64_t logits(int64_t width) { return kGridRows * kLogitThreads * kLogitVectors * width; }

// Elements of a vector in which the gradient is made; 1: single ones.
int64_t logit_vector(const CrossEntropyGradArgs& args);

}  // namespace limits

std::optional<Refusal> refuse(const CrossEntropyGradArgs& args, const GpuFacts& gpu);

}  // namespace megatron
