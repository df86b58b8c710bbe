#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "megatron/base/float_types.h"

// Vectors as values, for the loops where what stays in a register decides the speed.
namespace megatron::cpu::MEGATRON_ISA {

#ifdef __AVX512F__
inline constexpr int kVectorBytes = 64;
#else
inline constexpr int kVectorBytes = 32;
#endif

template <class C>
inline constexpr int64_t kVectorWidth = kVectorBytes / sizeof(C);

template <class C>
constexpr int64_t round_to_vector(int64_t n) {
  return (n + kVectorWidth<C> - 1) / kVectorWidth<C> * kVectorWidth<C>;
}

template <class C>
struct VectorOf {
  typedef C type __attribute__((vector_size(kVectorBytes)));
  typedef C unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(C)), may_alias));
};
template <class C>
using Vector = typename VectorOf<C>::type;

template <class C>
inline Vector<C> load_vector(const C* p) {
  return *reinterpret_cast<const typename VectorOf<C>::unaligned*>(p);
}
template <class C>
inline void store_vector(C* p, Vector<C> x) {
  *reinterpret_cast<typename VectorOf<C>::unaligned*>(p) = x;
}

// As many 16-bit and 32-bit integers as a vector has floats.
typedef uint16_t HalfBits __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef uint32_t FloatBits __attribute__((vector_size(kVectorBytes)));

// Values of another type as a vector of C, and back.
template <class C, class T>
inline Vector<C> load_as(const T* p) {
  if constexpr (std::is_same_v<C, T>) {
    return load_vector(p);
  } else if constexpr (std::is_same_v<T, bf16>) {
    FloatBits bits = __builtin_convertvector(*reinterpret_cast<const HalfBits*>(p), FloatBits) << 16;
    return reinterpret_cast<Vector<float>>(bits);
  } else {
    C values[kVectorWidth<C>];
    for (int i = 0; i < kVectorWidth<C>; ++i) values[i] = C(p[i]);
    return load_vector(values);
  }
}
template <class C, class T>
inline void store_as(T* p, Vector<C> x) {
  if constexpr (std::is_same_v<C, T>) {
    store_vector(p, x);
  } else if constexpr (std::is_same_v<T, bf16>) {  // nearest even, as bf16(float) does
    FloatBits bits = reinterpret_cast<FloatBits>(x);
    FloatBits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    *reinterpret_cast<HalfBits*>(p) =
        __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded, HalfBits);
  } else {
    C values[kVectorWidth<C>];
    store_vector(values, x);
    for (int i = 0; i < kVectorWidth<C>; ++i) p[i] = T(values[i]);
  }
}

// fp8 of a vector of floats: nearest even, beyond the largest value `overflow`, as narrow_float does it one
// by one.
typedef uint8_t QuarterBits __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));

template <int E, int M>
inline void store_fp8(uint8_t* p, Vector<float> x, uint32_t max_bits, uint32_t overflow, uint32_t nan) {
  constexpr uint32_t bias = (1u << (E - 1)) - 1u, drop = 23 - M;
  FloatBits bits = reinterpret_cast<FloatBits>(x), magnitude = bits & 0x7fffffff;
  FloatBits normal =
      ((magnitude + ((1u << (drop - 1)) - 1u) + (magnitude >> drop & 1)) >> drop) - ((127u - bias) << M);
  // Adding a power of two whose last place is the smallest subnormal number lets the hardware round.
  constexpr uint32_t align = (127u + drop + 1u - bias) << 23;
  Vector<float> aligned = reinterpret_cast<Vector<float>>(magnitude) + std::bit_cast<float>(align);
  FloatBits subnormal = reinterpret_cast<FloatBits>(aligned) - align;
  FloatBits result = magnitude < ((128u - bias) << 23) ? subnormal : normal;
  result = result > max_bits ? overflow + FloatBits{} : result;
  result = magnitude > 0x7f800000 ? nan + FloatBits{} : result;
  *reinterpret_cast<QuarterBits*>(p) = __builtin_convertvector(result | bits >> 31 << (E + M), QuarterBits);
}
inline void store_as_fp8(fp8_e4m3* p, Vector<float> x) { store_fp8<4, 3>(&p->bits, x, 0x7e, 0x7f, 0x7f); }
inline void store_as_fp8(fp8_e5m2* p, Vector<float> x) { store_fp8<5, 2>(&p->bits, x, 0x7b, 0x7c, 0x7e); }

// One step of a transpose: exchanges the off-diagonal quarters of every 2s × 2s block.
template <class C, int S = 1>
inline void transpose_vectors(Vector<C> (&x)[kVectorWidth<C>]) {
  constexpr int w = kVectorWidth<C>;
  if constexpr (S < w) {
    using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
    typename VectorOf<Index>::type low, high;
#pragma GCC unroll 16
    for (int j = 0; j < w; ++j) {
      low[j] = j & S ? w + j - S : j;
      high[j] = j & S ? w + j : j + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < w; ++i)
      if (!(i & S)) {
        Vector<C> a = x[i], b = x[i + S];
        x[i] = __builtin_shuffle(a, b, low);
        x[i + S] = __builtin_shuffle(a, b, high);
      }
    transpose_vectors<C, 2 * S>(x);
  }
}

// eˣ for x ≤ 88, good to an ulp or two; 0 below −87.
inline Vector<float> exp_vector(Vector<float> x) {
  constexpr float shift = 12582912.f, least = -87.f;
  typedef uint32_t Integers __attribute__((vector_size(kVectorBytes)));
  Vector<float> bounded = x < least ? least - Vector<float>{} : x;  // in this form NaN stays NaN
  // x = n ln 2 + r. Adding 1.5 · 2²³ rounds to the nearest integer and leaves it in the low bits.
  Vector<float> shifted = bounded * 1.44269504f + shift, n = shifted - shift;
  Vector<float> r = bounded - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  Vector<float> e = r * (1.f / 5040) + 1.f / 720;
  for (float c : {1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f}) e = e * r + c;
  Integers power = reinterpret_cast<Integers>(shifted) << 23;  // the shift's own bits fall out at the top
  Vector<float> result = reinterpret_cast<Vector<float>>(reinterpret_cast<Integers>(e) + power);
  return x < least ? Vector<float>{} : result;
}

// The same for x ≤ 709; 0 below −708.
inline Vector<double> exp_vector(Vector<double> x) {
  constexpr double shift = 6755399441055744.0, least = -708.0;  // 1.5 · 2⁵²
  typedef uint64_t Integers __attribute__((vector_size(kVectorBytes)));
  Vector<double> bounded = x < least ? least - Vector<double>{} : x;
  Vector<double> shifted = bounded * 1.4426950408889634 + shift, n = shifted - shift;
  Vector<double> r = bounded - n * 0.693147180369123816490;
  r = r - n * 1.90821492927058770002e-10;
  Vector<double> e = r * (1.0 / 6227020800) + 1.0 / 479001600;
  for (double c : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                   1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    e = e * r + c;
  Integers power = reinterpret_cast<Integers>(shifted) << 52;
  Vector<double> result = reinterpret_cast<Vector<double>>(reinterpret_cast<Integers>(e) + power);
  return x < least ? Vector<double>{} : result;
}

}  // namespace megatron::cpu::MEGATRON_ISA
