#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Elementary functions without branches or calls in fp32, so that loops over them become vector code; good to
// one or two units in the last place. fp64 is for checking and goes to libm.
namespace megatron::cpu::MEGATRON_ISA::math {

inline double exp(double x) { return std::exp(x); }
inline double log(double x) { return std::log(x); }
inline double log1p(double x) { return std::log1p(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }

// Σ c[i] xⁱ by Horner's rule. A list of arguments rather than an array: no loop that could stand in the way
// of vector code.
template <class... C>
inline float polynomial(float x, float c, C... higher) {
  if constexpr (sizeof...(higher) == 0)
    return c;
  else
    return std::fma(polynomial(x, higher...), x, c);
}

inline float exp(float x) {
  x = x < -104.f ? -104.f : x;  // in this form NaN stays NaN
  x = x > 89.f ? 89.f : x;
  // x = n ln 2 + r. Adding 1.5 · 2²³ rounds to the nearest integer and leaves it in the low bits.
  constexpr float shift = 12582912.f;
  float shifted = std::fma(x, 1.44269504f, shift), n = shifted - shift;
  float r = std::fma(n, -0.693145752f, x);
  r = std::fma(n, -1.42860677e-6f, r);
  float e = polynomial(r, 1.f, 1.f, 0.5f, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720, 1.f / 5040);
  // 2ⁿ in two factors: n goes beyond the exponents of normal numbers at both ends.
  int32_t power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(shift), half = power >> 1;
  return e * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((power - half + 127) << 23);
}

inline float log(float x) {
  // Subnormal numbers are brought up first.
  bool tiny = x < 1.17549435e-38f;
  float scaled = tiny ? x * 0x1p23f : x;
  // scaled = 2ⁿ m with m between √½ and √2.
  int32_t bits = std::bit_cast<int32_t>(scaled), offset = bits - 0x3f3504f3;
  float n = static_cast<float>(offset >> 23) - (tiny ? 23.f : 0.f);
  float f = std::bit_cast<float>((offset & 0x7fffff) + 0x3f3504f3) - 1.f;
  float p = polynomial(f, 0.3333333119f, -0.2499998905f, 0.2000070748f, -0.1666848024f, 0.1424993653f,
                       -0.1241105068f, 0.1166151106f, -0.1157120076f, 0.07149753964f);
  float f2 = f * f;
  float low = std::fma(n, 1.42860677e-6f, std::fma(f2 * f, p, -0.5f * f2));
  float result = std::fma(n, 0.693145752f, f + low);
  result = x == INFINITY ? x : result;
  result = x == 0.f ? -INFINITY : result;
  return x >= 0.f ? result : NAN;
}

// For x ≥ 0: log(1 + x) with what the sum 1 + x lost put back.
inline float log1p(float x) {
  float sum = 1.f + x, lost = x - (sum - 1.f);
  return log(sum) + lost / sum;
}

inline float tanh(float x) {
  float t = x * x;
  float p = polynomial(t, -0.3333333323f, 0.1333331333f, -0.05396165337f, 0.02178910749f, -0.008412553552f,
                       0.002373514912f);
  float small = std::fma(x * t, p, x);
  float magnitude = std::fabs(x);
  float large = std::copysign(1.f - 2.f / (exp(2.f * magnitude) + 1.f), x);
  return magnitude < 0.6f ? small : large;
}

inline float erf(float x) {
  float magnitude = std::fabs(x), t = x * x;
  float small = x * polynomial(t, 1.128379166f, -0.376126269f, 0.1128359746f, -0.0268543288f, 0.005189311943f,
                               -0.0008018854996f, 7.882497121e-05f);
  float bounded = magnitude > 4.f ? 4.f : magnitude;  // where erf is 1 already
  float tail =
      polynomial(bounded, -0.0003032129773f, 1.130166676f, 0.6319370936f, 0.1099782452f, -0.02636471738f,
                 0.004740222349f, -0.0005927695393f, 4.559062261e-05f, -1.614061611e-06f);
  float large = std::copysign(1.f - exp(-tail), x);
  return magnitude < 1.f ? small : large;
}

template <class C>
inline C sigmoid(C x) {
  return C(1) / (C(1) + exp(-x));
}

// log(1 + eˣ).
template <class C>
inline C softplus(C x) {
  return (x > C(0) ? x : C(0)) + log1p(exp(x > C(0) ? -x : x));
}

}  // namespace megatron::cpu::MEGATRON_ISA::math
