#pragma once

#include <vector>

#include "megatron/base/gpu_facts.h"

namespace megatron {

// Of each GPU here, without starting any of them; empty where there is none. Implemented by device/cuda, or
// by device/none in a build without CUDA.
std::vector<GpuFacts> gpu_facts();

}  // namespace megatron
