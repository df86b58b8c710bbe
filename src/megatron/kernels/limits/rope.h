#pragma once

#include "megatron/kernels/limits/refusal.h"
#include "megatron/kernels/qkv.h"
#include "megatron/kernels/rope.h"

namespace megatron {
namespace limits {

inline constexpr int64_t kThreads = int64_t{1} << 31;  // of a launch whose threads are counted in 32 bits

// How threads share the heads of tokens that are turned, or only cut out of their projection: each has a
// vector of pairs, or of elements that do not turn, where all lie well, else one of them; of two heads where
// vectors are used and the number of heads is even.
struct RopeThreads {
  bool vectors;
  int64_t count;
};
RopeThreads rope_threads(const RopeArgs& args);
RopeThreads rope_threads(const QkvSplitArgs& args);

}  // namespace limits

std::optional<Refusal> refuse(const RopeArgs& args, const GpuFacts& gpu);
std::optional<Refusal> refuse(const QkvSplitArgs& args, const GpuFacts& gpu);

}  // namespace megatron
