#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace megatron {

enum class DType : uint8_t { F64, F32, BF16, F16, F8E4M3, F8E5M2, I64, I32, I16, I8, U8, Bool };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
    case DType::I16:
      return 2;
    default:
      return 1;
  }
}

constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"fp64",  "fp32",  "bf16",  "fp16", "fp8_e4m3", "fp8_e5m2",
                                        "int64", "int32", "int16", "int8", "uint8",    "bool"};
  return names[static_cast<size_t>(dtype)];
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::F8E5M2; }
constexpr bool is_fp8(DType dtype) { return dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }

// The dtype in which sums over values of `dtype` are kept: statistics, weight gradients, optimizer state.
constexpr DType accumulation_dtype(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

DType dtype_from_name(std::string_view name);  // also "float32", "bfloat16", …; throws ConfigError

}  // namespace megatron

template <>
struct fmt::formatter<megatron::DType> {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  auto format(megatron::DType dtype, fmt::format_context& ctx) const {
    return fmt::format_to(ctx.out(), "{}", megatron::name_of(dtype));
  }
};
