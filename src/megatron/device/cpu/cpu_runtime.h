#pragma once

#include "megatron/device/runtime.h"

namespace megatron {

std::shared_ptr<DeviceRuntime> make_cpu_runtime();
std::shared_ptr<DeviceRuntime> make_meta_runtime();

}  // namespace megatron
