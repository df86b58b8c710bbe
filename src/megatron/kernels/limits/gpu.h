#pragma once

#include "megatron/kernels/limits/refusal.h"

namespace megatron {
namespace limits {

inline constexpr int kMinCapability = 80;           // bf16 on tensor cores, copies beside the computation
inline constexpr int kFp8Capability = 89;           // from here on
inline constexpr int kBlockwiseFp8Capability = 90;  // this one alone: cuBLASLt's scales per block of 128
inline constexpr int kFp8ExpertsCapability = 90;    // this one alone: wgmma of sm_90a
inline constexpr int kSharingRanks = 128;           // of a process whose ranks share GPUs

}  // namespace limits

std::string capability_text(int compute_capability);  // "9.0"

// A GPU that takes no launch at all.
std::optional<Refusal> refuse_gpu(const GpuFacts& gpu);
// Ranks of a process that sum over each other's memory.
std::optional<Refusal> refuse_sharing_ranks(int64_t ranks);

}  // namespace megatron
