#pragma once

#include "megatron/kernels/cpu/isa/math.h"
#include "megatron/kernels/elementwise.h"

// The functions of Unary and their derivatives, one value at a time.
namespace megatron::cpu::MEGATRON_ISA {

template <Unary K, class C>
inline C unary_value(C x) {
  if constexpr (K == Unary::Neg) return -x;
  if constexpr (K == Unary::Abs) return std::fabs(x);
  if constexpr (K == Unary::Square) return x * x;
  if constexpr (K == Unary::Sqrt) return std::sqrt(x);
  if constexpr (K == Unary::Rsqrt) return C(1) / std::sqrt(x);
  if constexpr (K == Unary::Exp) return math::exp(x);
  if constexpr (K == Unary::Log) return math::log(x);
  if constexpr (K == Unary::Sigmoid) return math::sigmoid(x);
  if constexpr (K == Unary::Tanh) return math::tanh(x);
  if constexpr (K == Unary::Softplus) return math::softplus(x);
  if constexpr (K == Unary::Relu) return x < C(0) ? C(0) : x;  // in this form NaN stays NaN
  if constexpr (K == Unary::SquaredRelu) return x < C(0) ? C(0) : x * x;
  if constexpr (K == Unary::Silu) return x * math::sigmoid(x);
  if constexpr (K == Unary::Gelu) return C(0.5) * x * (C(1) + math::erf(x * C(M_SQRT1_2)));
  if constexpr (K == Unary::GeluTanh) {
    C inner = C(0.7978845608028654) * x * (C(1) + C(0.044715) * x * x);
    return C(0.5) * x * (C(1) + math::tanh(inner));
  }
  if constexpr (K == Unary::QuickGelu) return x * math::sigmoid(C(1.702) * x);
  if constexpr (K == Unary::Mish) return x * math::tanh(math::softplus(x));
}

template <Unary K, class C>
inline C unary_slope(C x) {
  if constexpr (K == Unary::Neg) return C(-1);
  if constexpr (K == Unary::Abs) return x > C(0) ? C(1) : x < C(0) ? C(-1) : C(0);
  if constexpr (K == Unary::Square) return C(2) * x;
  if constexpr (K == Unary::Sqrt) return C(0.5) / std::sqrt(x);
  if constexpr (K == Unary::Rsqrt) return C(-0.5) / (x * std::sqrt(x));
  if constexpr (K == Unary::Exp) return math::exp(x);
  if constexpr (K == Unary::Log) return C(1) / x;
  if constexpr (K == Unary::Sigmoid) {
    C s = math::sigmoid(x);
    return s * (C(1) - s);
  }
  if constexpr (K == Unary::Tanh) {
    C t = math::tanh(x);
    return C(1) - t * t;
  }
  if constexpr (K == Unary::Softplus) return math::sigmoid(x);
  if constexpr (K == Unary::Relu) return x > C(0) ? C(1) : C(0);
  if constexpr (K == Unary::SquaredRelu) return x > C(0) ? C(2) * x : C(0);
  if constexpr (K == Unary::Silu) {
    C s = math::sigmoid(x);
    return s * (C(1) + x * (C(1) - s));
  }
  if constexpr (K == Unary::Gelu)
    return C(0.5) * (C(1) + math::erf(x * C(M_SQRT1_2))) +
           x * C(0.3989422804014327) * math::exp(C(-0.5) * x * x);
  if constexpr (K == Unary::GeluTanh) {
    constexpr C scale = C(0.7978845608028654);
    C t = math::tanh(scale * x * (C(1) + C(0.044715) * x * x));
    return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * scale * (C(1) + C(0.134145) * x * x);
  }
  if constexpr (K == Unary::QuickGelu) {
    C s = math::sigmoid(C(1.702) * x);
    return s * (C(1) + C(1.702) * x * (C(1) - s));
  }
  if constexpr (K == Unary::Mish) {
    C t = math::tanh(math::softplus(x));
    return t + x * (C(1) - t * t) * math::sigmoid(x);
  }
}

}  // namespace megatron::cpu::MEGATRON_ISA
