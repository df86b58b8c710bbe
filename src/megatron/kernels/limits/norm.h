#pragma once

#include "megatron/kernels/limits/refusal.h"
#include "megatron/kernels/norm.h"
#include "megatron/kernels/recurrent.h"

namespace megatron {
namespace limits {

// A row of a norm lies in the registers of a block: as vectors of 16 bytes where all rows begin at multiples
// of these, else as single elements.
inline constexpr int kNormThreads = 512, kNormVectors = 8, kNormElements = 16;
constexpr int64_t norm_row(int64_t element_bytes, bool vectors) {
  return int64_t{kNormThreads} * (vectors ? kNormVectors * (16 / element_bytes) : kNormElements);
}
// Gated norms hold more rows at once, and long ones as vectors of elements of 16 bits alone.
constexpr int64_t gated_norm_row(int64_t element_bytes, bool vectors) {
  return norm_row(element_bytes, vectors && element_bytes == 2);
}

// Whether a norm reads and writes its rows as vectors.
bool in_vectors(const NormArgs& args);
bool in_vectors(const NormBackwardArgs& args);

}  // namespace limits

std::optional<Refusal> refuse(const NormArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const NormBackwardArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const GatedNormSumsArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const GatedNormArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const GatedNormBackwardArgs& args, const GpuFacts& gpu);

}  // namespace megatron
