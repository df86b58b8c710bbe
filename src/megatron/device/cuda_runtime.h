#pragma once

#include "megatron/device/runtime.h"

namespace megatron {

// Implemented by device/cuda, or by device/none in a build without CUDA.
std::shared_ptr<DeviceRuntime> make_cuda_runtime(int index);
int count_cuda_devices();

}  // namespace megatron
