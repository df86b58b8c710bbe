#pragma once

#include <fmt/core.h>

#include <cstdint>

namespace megatron {

enum class DeviceType : uint8_t { Cpu, Cuda, Meta };  // Meta: shapes and memory accounting, no data

struct Device {
  DeviceType type = DeviceType::Cpu;
  int8_t index = 0;

  bool is_cpu() const { return type == DeviceType::Cpu; }
  bool is_cuda() const { return type == DeviceType::Cuda; }
  bool is_meta() const { return type == DeviceType::Meta; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{DeviceType::Cpu, 0};
inline constexpr Device kMeta{DeviceType::Meta, 0};

}  // namespace megatron

template <>
struct fmt::formatter<megatron::Device> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(const megatron::Device& device, fmt::format_context& ctx) const {
    if (device.is_cuda()) return fmt::format_to(ctx.out(), "cuda:{}", int{device.index});
    return fmt::format_to(ctx.out(), "{}", device.is_cpu() ? "cpu" : "meta");
  }
};
