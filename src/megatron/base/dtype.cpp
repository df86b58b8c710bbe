#include "megatron/base/dtype.h"

#include "megatron/base/error.h"

namespace megatron {

DType dtype_from_name(std::string_view name) {
  struct Alias {
    std::string_view name;
    DType dtype;
  };
  static constexpr Alias aliases[] = {
      {"float64", DType::F64}, {"double", DType::F64},           {"float32", DType::F32},
      {"float", DType::F32},   {"bfloat16", DType::BF16},        {"float16", DType::F16},
      {"half", DType::F16},    {"float8_e4m3fn", DType::F8E4M3}, {"float8_e5m2", DType::F8E5M2}};
  for (auto dtype : {DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2,
                     DType::I64, DType::I32, DType::I16, DType::I8, DType::U8, DType::Bool})
    if (name == name_of(dtype)) return dtype;
  for (const auto& alias : aliases)
    if (name == alias.name) return alias.dtype;
  throw ConfigError(
      fmt::format("unknown dtype '{}': use fp64, fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, int64, int32, "
                  "int16, int8, uint8 or bool",
                  name));
}

}  // namespace megatron
