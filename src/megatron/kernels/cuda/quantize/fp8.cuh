#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

template <class Q>
constexpr float kLargest = std::is_same_v<Q, __nv_fp8_e4m3> ? 448.f : 57344.f;

// Four values to four bytes, saturating.
template <class Q>
__device__ __forceinline__ uint32_t cast4(float a, float b, float c, float d) {
  constexpr auto kind = std::is_same_v<Q, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
  uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, kind);
  uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, kind);
  return low | high << 16;
}

template <class F>
void dispatch_fp8(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::F8E4M3:
      return f(Type<__nv_fp8_e4m3>{});
    case DType::F8E5M2:
      return f(Type<__nv_fp8_e5m2>{});
    default:
      fail("{}: {} is no fp8 format; use fp8_e4m3 or fp8_e5m2", kernel, dtype);
  }
}

}  // namespace megatron::cuda
