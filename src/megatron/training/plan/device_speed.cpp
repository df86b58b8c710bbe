#include "megatron/training/plan/device_speed.h"

namespace megatron {
namespace {

// TFLOP/s of dense GEMMs of 16 bits, of fp8 (0: it has none) and of fp32, which is never rounded to TF32
// here; TB/s of the memory.
struct Gpu {
  std::string_view name;
  double narrow, fp8, fp32, memory;
};

constexpr Gpu kGpus[] = {
    {"NVIDIA H200", 989.4, 1978.9, 66.9, 4.8},        {"NVIDIA H200 NVL", 835.5, 1671, 60, 4.8},
    {"NVIDIA GH200 480GB", 989.4, 1978.9, 66.9, 4.0}, {"NVIDIA H100 80GB HBM3", 989.4, 1978.9, 66.9, 3.35},
    {"NVIDIA H100 NVL", 835.5, 1671, 60, 3.9},        {"NVIDIA H100 PCIe", 756, 1513, 51.2, 2.0},
    {"NVIDIA A100-SXM4-80GB", 312, 0, 19.5, 2.039},   {"NVIDIA A100-SXM4-40GB", 312, 0, 19.5, 1.555},
    {"NVIDIA A100 80GB PCIe", 312, 0, 19.5, 1.935},   {"NVIDIA A100-PCIE-40GB", 312, 0, 19.5, 1.555},
};

bool is_narrow(DType dtype) { return dtype == DType::BF16 || dtype == DType::F16; }

}  // namespace

// Rounded from what docs/performance.md measured; only their ratio matters where costs are compared.
DeviceSpeed speed_of(DeviceType device, DType dtype) {
  if (device == DeviceType::Cpu) return {.flops = 1e11, .bytes = 1e10, .fp8_flops = 1e11};
  if (is_narrow(dtype)) return {};
  return {.flops = 5e13, .bytes = 4e12, .fp8_flops = 1.3e15};
}

std::optional<DeviceSpeed> peak_speed(std::string_view gpu, DType dtype) {
  if (!is_narrow(dtype) && dtype != DType::F32) return {};
  for (const Gpu& known : kGpus)
    if (known.name == gpu)
      return DeviceSpeed{.flops = (is_narrow(dtype) ? known.narrow : known.fp32) * 1e12,
                         .bytes = known.memory * 1e12,
                         .fp8_flops = known.fp8 * 1e12};
  return {};
}

}  // namespace megatron
