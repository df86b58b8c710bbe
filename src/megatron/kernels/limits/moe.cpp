#include "megatron/kernels/limits/moe.h"

namespace megatron {

std::optional<Refusal> refuse(const ExpertSortArgs& args, const GpuFacts&) {
  const int64_t slots = args.offsets.numel() - 1;
  if (slots <= limits::kExpertSlots) return {};
  return Refusal{
      LaunchLimit::Experts, slots,
      fmt::format("the CUDA kernels sort tokens among {} experts, not {}", limits::kExpertSlots, slots)};
}

}  // namespace megatron
