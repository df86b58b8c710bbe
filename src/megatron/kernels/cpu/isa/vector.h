#pragma once

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
  typedef int32_t Integers __attribute__((vector_size(kVectorBytes)));
  Vector<float> bounded = x < least ? least - Vector<float>{} : x;  // in this form NaN stays NaN
  // x = n ln 2 + r. Adding 1.5 · 2²³ rounds to the nearest integer and leaves it in the low bits.
  Vector<float> shifted = bounded * 1.44269504f + shift, n = shifted - shift;
  Vector<float> r = bounded - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  Vector<float> e = r * (1.f / 5040) + 1.f / 720;
  e = e * r + 1.f / 120;
  e = e * r + 1.f / 24;
  e = e * r + 1.f / 6;
  e = e * r + 0.5f;
  e = e * r + 1.f;
  e = e * r + 1.f;
  Integers power = reinterpret_cast<Integers>(shifted) << 23;  // the shift's own bits fall out at the top
  Vector<float> result = reinterpret_cast<Vector<float>>(reinterpret_cast<Integers>(e) + power);
  return x < least ? Vector<float>{} : result;
}

inline Vector<double> exp_vector(Vector<double> x) {
  for (int i = 0; i < kVectorWidth<double>; ++i) x[i] = std::exp(x[i]);
  return x;
}

}  // namespace megatron::cpu::MEGATRON_ISA
