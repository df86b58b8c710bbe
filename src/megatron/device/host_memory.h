#pragma once

#include <memory>

#include "megatron/device/allocator.h"

namespace megatron {

// Host memory that a device copies to and from by itself (pinned, for a GPU), kept and counted like a
// device's.
std::shared_ptr<Allocator> make_host_allocator(std::shared_ptr<DeviceRuntime> device);

}  // namespace megatron
