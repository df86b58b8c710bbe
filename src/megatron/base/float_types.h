#pragma once

#include <bit>
#include <cstdint>

#include "megatron/base/dtype.h"

// Storage types of the narrow formats. Arithmetic happens in float; conversions round to nearest even.
namespace megatron {

struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

struct fp16 {
  uint16_t bits = 0;
  fp16() = default;
  explicit fp16(float value);
  operator float() const;
};

namespace detail {

// A small float with E exponent and M mantissa bits from an fp32 value, nearest even. `max_bits` is the
// largest finite pattern, `overflow` what lies beyond it becomes (infinity or NaN).
template <int E, int M>
constexpr uint8_t narrow_float(float value, uint32_t max_bits, uint32_t overflow, uint32_t nan) {
  constexpr int bias = (1 << (E - 1)) - 1;
  uint32_t u = std::bit_cast<uint32_t>(value);
  uint32_t sign = (u >> 31) << (E + M);
  uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | nan);
  if (magnitude == 0x7f800000u) return static_cast<uint8_t>(sign | overflow);
  int exponent = static_cast<int>(magnitude >> 23) - 127 + bias;
  uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  int shift = 23 - M + (exponent < 1 ? 1 - exponent : 0);
  if (shift > 25) return static_cast<uint8_t>(sign);
  uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1);
  if (rest > half || (rest == half && (kept & 1u))) ++kept;
  // `kept` carries the implicit bit; adding the exponent lets a mantissa overflow move to the next binade by
  // itself.
  uint32_t result = exponent < 1 ? kept : (static_cast<uint32_t>(exponent - 1) << M) + kept;
  return static_cast<uint8_t>(sign | (result > max_bits ? overflow : result));
}

template <int E, int M>
constexpr float widen_float(uint8_t bits) {
  constexpr int bias = (1 << (E - 1)) - 1;
  uint32_t exponent = (bits >> M) & ((1u << E) - 1u), mantissa = bits & ((1u << M) - 1u);
  uint32_t sign = static_cast<uint32_t>(bits >> (E + M)) << 31;
  if (exponent == 0) {
    float step = std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - bias - M) << 23);
    float value = static_cast<float>(mantissa) * step;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - bias) << 23) | (mantissa << (23 - M)));
}

}  // namespace detail

struct fp8_e4m3 {  // e4m3fn: no infinities, NaN is 0x7f/0xff, largest 448
  uint8_t bits = 0;
  fp8_e4m3() = default;
  explicit fp8_e4m3(float value) : bits(detail::narrow_float<4, 3>(value, 0x7e, 0x7f, 0x7f)) {}
  operator float() const {
    return (bits & 0x7f) == 0x7f ? std::bit_cast<float>(0x7fc00000u) : detail::widen_float<4, 3>(bits);
  }
  static constexpr float max = 448.f;
};

struct fp8_e5m2 {  // IEEE-like, largest 57344
  uint8_t bits = 0;
  fp8_e5m2() = default;
  explicit fp8_e5m2(float value) : bits(detail::narrow_float<5, 2>(value, 0x7b, 0x7c, 0x7e)) {}
  operator float() const {
    uint32_t magnitude = bits & 0x7fu;
    if (magnitude < 0x7c) return detail::widen_float<5, 2>(bits);
    uint32_t sign = static_cast<uint32_t>(bits >> 7) << 31;
    return std::bit_cast<float>(sign | (magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u));
  }
  static constexpr float max = 57344.f;
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::F64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::F32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::BF16;
}
template <>
constexpr DType dtype_of<fp16>() {
  return DType::F16;
}
template <>
constexpr DType dtype_of<fp8_e4m3>() {
  return DType::F8E4M3;
}
template <>
constexpr DType dtype_of<fp8_e5m2>() {
  return DType::F8E5M2;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::I64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::I32;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::I16;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::I8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::U8;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::Bool;
}

inline fp16::fp16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    return;
  }
  if (magnitude <
      0x38800000u) {  // subnormal: adding 0.5 aligns the mantissa, and the FPU rounds it to nearest even
    uint32_t aligned = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    bits = static_cast<uint16_t>(sign | aligned);
    return;
  }
  uint32_t rounded = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  bits = static_cast<uint16_t>(sign | (rounded > 0x7c00u ? 0x7c00u : rounded));
}

inline fp16::operator float() const {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu,
           mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  uint32_t wide = exponent == 31 ? 0x7f800000u : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | wide | (mantissa << 13));
}

}  // namespace megatron
