#pragma once

#include "megatron/kernels/cuda/core/types.cuh"
#include "megatron/kernels/elementwise.h"

namespace megatron::cuda {

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
__device__ __forceinline__ float log1p_of(float x) { return log1pf(x); }
__device__ __forceinline__ double log1p_of(double x) { return log1p(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ float erf_of(float x) { return erff(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ float sqrt_of(float x) { return sqrtf(x); }
__device__ __forceinline__ double sqrt_of(double x) { return sqrt(x); }
__device__ __forceinline__ float abs_of(float x) { return fabsf(x); }
__device__ __forceinline__ double abs_of(double x) { return fabs(x); }

// Results that are rounded to 16 bits need no more than the hardware's approximate exponential and
// reciprocal, each one instruction where tiny numbers count as zero.
template <class T>
inline constexpr bool kRough = sizeof(T) == 2;

inline constexpr float kRoughLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_rough(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_rough(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <bool Rough, class C>
__device__ __forceinline__ C sigmoid(C x) {
  if constexpr (Rough)
    return reciprocal_rough(1.f + exp2_rough(-kRoughLog2e * x));
  else
    return C(1) / (C(1) + exp_of(-x));
}
template <class C>
__device__ __forceinline__ C softplus(C x) {
  return (x > 0 ? x : C(0)) + log1p_of(exp_of(-abs_of(x)));
}

inline constexpr double kInverseSqrt2 = 0.70710678118654752440, kInverseSqrt2Pi = 0.39894228040143267794,
                        kSqrt2OverPi = 0.79788456080286535588, kGeluCubic = 0.044715, kQuickGelu = 1.702;

template <bool Rough, class C>
__device__ __forceinline__ C activate(Unary kind, C x) {
  switch (kind) {
    case Unary::Neg:
      return -x;
    case Unary::Abs:
      return abs_of(x);
    case Unary::Square:
      return x * x;
    case Unary::Sqrt:
      return sqrt_of(x);
    case Unary::Rsqrt:
      return C(1) / sqrt_of(x);
    case Unary::Exp:
      return exp_of(x);
    case Unary::Log:
      return log_of(x);
    case Unary::Sigmoid:
      return sigmoid<Rough>(x);
    case Unary::Tanh:
      return tanh_of(x);
    case Unary::Softplus:
      return softplus(x);
    case Unary::Relu:
      return x > 0 ? x : C(0);
    case Unary::SquaredRelu:
      return x > 0 ? x * x : C(0);
    case Unary::Silu:
      return x * sigmoid<Rough>(x);
    case Unary::Gelu:
      return C(0.5) * x * (C(1) + erf_of(x * C(kInverseSqrt2)));
    case Unary::GeluTanh:
      return C(0.5) * x * (C(1) + tanh_of(C(kSqrt2OverPi) * (x + C(kGeluCubic) * x * x * x)));
    case Unary::QuickGelu:
      return x * sigmoid<Rough>(C(kQuickGelu) * x);
    case Unary::Mish:
      return x * tanh_of(softplus(x));
  }
  return x;
}

// f'(x)
template <bool Rough, class C>
__device__ __forceinline__ C activate_slope(Unary kind, C x) {
  switch (kind) {
    case Unary::Neg:
      return C(-1);
    case Unary::Abs:
      return x > 0 ? C(1) : (x < 0 ? C(-1) : C(0));
    case Unary::Square:
      return 2 * x;
    case Unary::Sqrt:
      return C(0.5) / sqrt_of(x);
    case Unary::Rsqrt:
      return C(-0.5) / (x * sqrt_of(x));
    case Unary::Exp:
      return exp_of(x);
    case Unary::Log:
      return C(1) / x;
    case Unary::Sigmoid: {
      C s = sigmoid<Rough>(x);
      return s * (1 - s);
    }
    case Unary::Tanh: {
      C t = tanh_of(x);
      return 1 - t * t;
    }
    case Unary::Softplus:
      return sigmoid<Rough>(x);
    case Unary::Relu:
      return x > 0 ? C(1) : C(0);
    case Unary::SquaredRelu:
      return x > 0 ? 2 * x : C(0);
    case Unary::Silu: {
      C s = sigmoid<Rough>(x);
      return s * (1 + x * (1 - s));
    }
    case Unary::Gelu:
      return C(0.5) * (C(1) + erf_of(x * C(kInverseSqrt2))) +
             x * C(kInverseSqrt2Pi) * exp_of(C(-0.5) * x * x);
    case Unary::GeluTanh: {
      C t = tanh_of(C(kSqrt2OverPi) * (x + C(kGeluCubic) * x * x * x));
      C inner = C(kSqrt2OverPi) * (1 + 3 * C(kGeluCubic) * x * x);
      return C(0.5) * (1 + t) + C(0.5) * x * (1 - t * t) * inner;
    }
    case Unary::QuickGelu: {
      C s = sigmoid<Rough>(C(kQuickGelu) * x);
      return s + x * C(kQuickGelu) * s * (1 - s);
    }
    case Unary::Mish: {
      C t = tanh_of(softplus(x));
      return t + x * (1 - t * t) * sigmoid<Rough>(x);
    }
  }
  return C(1);
}

}  // namespace megatron::cuda
