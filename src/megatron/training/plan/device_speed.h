#pragma once

#include <optional>
#include <string_view>

#include "megatron/base/dtype.h"
#include "megatron/device/device.h"

namespace megatron {

// Arithmetic and memory traffic of a device in one second, for estimates of time: an op takes what the slower
// of the two needs.
struct DeviceSpeed {
  double flops = 7e14, bytes = 4e12;  // bf16 on Hopper
  double fp8_flops = 1.3e15;          // of GEMMs in fp8
};

// What is reached in practice.
DeviceSpeed speed_of(DeviceType device, DType dtype);
// What the maker states for a GPU of this name, without sparsity; nothing where it is not known.
std::optional<DeviceSpeed> peak_speed(std::string_view gpu, DType dtype);

}  // namespace megatron
