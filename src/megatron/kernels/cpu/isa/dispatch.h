#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "megatron/kernels/cpu/isa/families.h"
#include "megatron/kernels/cpu/isa_tables.h"

namespace megatron::cpu::MEGATRON_ISA {

// Arithmetic on T happens in this type.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the C++ type of a floating dtype. fp8 is storage only: dequantise first.
template <class F>
void dispatch_float(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(Type<float>{});
    case DType::BF16:
      return f(Type<bf16>{});
    case DType::F64:
      return f(Type<double>{});
    case DType::F16:
      return f(Type<fp16>{});
    default:
      reject_dtype(kernel, dtype);
  }
}

template <class F>
void dispatch_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F8E4M3:
      return f(Type<fp8_e4m3>{});
    case DType::F8E5M2:
      return f(Type<fp8_e5m2>{});
    case DType::I64:
      return f(Type<int64_t>{});
    case DType::I32:
      return f(Type<int32_t>{});
    case DType::I16:
      return f(Type<int16_t>{});
    case DType::I8:
      return f(Type<int8_t>{});
    case DType::U8:
      return f(Type<uint8_t>{});
    case DType::Bool:
      return f(Type<bool>{});
    default:
      return dispatch_float("copy", dtype, std::forward<F>(f));
  }
}

// A data pointer without const-correct ceremony: kernels know which arguments they write.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

template <class T>
T* optional_pointer(const Tensor& tensor) {
  return tensor.defined() ? pointer<T>(tensor) : nullptr;
}

// Elements below which splitting a loop over threads costs more than it gains.
inline constexpr int64_t kGrain = 16384;

}  // namespace megatron::cpu::MEGATRON_ISA
