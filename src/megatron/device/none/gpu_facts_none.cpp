#include "megatron/device/gpu_facts.h"

namespace megatron {

std::vector<GpuFacts> gpu_facts() { return {}; }

}  // namespace megatron
