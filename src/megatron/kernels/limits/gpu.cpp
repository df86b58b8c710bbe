#include "megatron/kernels/limits/gpu.h"

#include <fmt/core.h>

namespace megatron {

std::string capability_text(int compute_capability) {
  return fmt::format("{}.{}", compute_capability / 10, compute_capability % 10);
}

std::optional<Refusal> refuse_gpu(const GpuFacts& gpu) {
  if (gpu.compute_capability == 0 || gpu.compute_capability >= limits::kMinCapability) return {};
  return Refusal{
      LaunchLimit::GpuGeneration, gpu.compute_capability,
      fmt::format("a GPU of compute capability {} is older than the kernels, which need {}",
                  capability_text(gpu.compute_capability), capability_text(limits::kMinCapability))};
}

std::optional<Refusal> refuse_sharing_ranks(int64_t ranks) {
  if (ranks <= limits::kSharingRanks) return {};
  return Refusal{LaunchLimit::SharingRanks, ranks,
                 fmt::format("at most {} ranks of a process may share GPUs", limits::kSharingRanks)};
}

}  // namespace megatron
