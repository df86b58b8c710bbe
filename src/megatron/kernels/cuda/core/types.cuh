#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "megatron/base/dtype.h"
#include "megatron/base/error.h"

// The device's own names for our dtypes; they have the same bytes as the types of base/float_types.h.
namespace megatron::cuda {

using bfloat = __nv_bfloat16;
using half = __half;

template <class T>
struct Type {
  using type = T;
};

// Arithmetic on T happens in this type.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class F>
void dispatch_float(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(Type<float>{});
    case DType::BF16:
      return f(Type<bfloat>{});
    case DType::F64:
      return f(Type<double>{});
    case DType::F16:
      return f(Type<half>{});
    default:
      fail("{}: {} is not supported by the CUDA kernel; use fp32, bf16, fp16 or fp64", kernel, dtype);
  }
}

template <class F>
void dispatch_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F8E4M3:
      return f(Type<__nv_fp8_e4m3>{});
    case DType::F8E5M2:
      return f(Type<__nv_fp8_e5m2>{});
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

template <class T>
__device__ __forceinline__ Compute<T> widen(T value) {
  if constexpr (std::is_same_v<T, bfloat>)
    return __bfloat162float(value);
  else if constexpr (std::is_same_v<T, half>)
    return __half2float(value);
  else
    return value;
}

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T narrow(Compute<T> value) {
  if constexpr (std::is_same_v<T, bfloat>)
    return __float2bfloat16_rn(value);
  else if constexpr (std::is_same_v<T, half>)
    return __float2half_rn(value);
  else
    return value;
}

// N elements that move together; 16 bytes at most pay.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// Memory is read and written 16 bytes at a time. Copied as it is, a vector of narrow elements may be cut into
// single ones by the compiler.
template <int N, class T>
__device__ __forceinline__ Vec<T, N> read(const T* from) {
  using V = Vec<T, N>;
  if constexpr (sizeof(V) % 16 == 0) {
    Vec<uint4, sizeof(V) / 16> bits;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V) / 16); ++i)
      bits.v[i] = reinterpret_cast<const uint4*>(from)[i];
    return __builtin_bit_cast(V, bits);
  } else if constexpr (sizeof(V) == 8) {
    return __builtin_bit_cast(V, *reinterpret_cast<const uint2*>(from));
  } else {
    return *reinterpret_cast<const V*>(from);
  }
}

// Writes to device memory, not to shared. The compiler may move later reads before it, so that many are in
// flight at once: a thread must not read what it wrote.
template <int N, class T>
__device__ __forceinline__ void write(T* to, const Vec<T, N>& value) {
  if constexpr (sizeof value % 16 == 0) {
    constexpr int parts = sizeof value / 16;
    auto bits = __builtin_bit_cast(Vec<uint4, parts>, value);
#pragma unroll
    for (int i = 0; i < parts; ++i)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                       __cvta_generic_to_global(reinterpret_cast<uint4*>(to) + i)),
                   "r"(bits.v[i].x), "r"(bits.v[i].y), "r"(bits.v[i].z), "r"(bits.v[i].w));
  } else if constexpr (sizeof value == 8) {
    auto bits = __builtin_bit_cast(uint2, value);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(bits.x),
                 "r"(bits.y));
  } else {
    *reinterpret_cast<Vec<T, N>*>(to) = value;
  }
}

// Two floats rounded to nearest even as packed bf16x2 or f16x2, in one instruction.
template <class T>
__device__ __forceinline__ uint32_t narrow_pair(float low, float high) {
  static_assert(std::is_same_v<T, bfloat> || std::is_same_v<T, half>);
  uint32_t word;
  if constexpr (std::is_same_v<T, bfloat>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// A vector in 32-bit registers, as it came from memory. As elements, those of two bytes would take a
// register each, and so would their widened values.
template <class T, int W>
struct Packed {
  static constexpr bool kHalf = sizeof(T) * W < 4;
  static constexpr int kWords = kHalf ? 1 : sizeof(T) * W / 4;
  uint32_t word[kWords];

  __device__ void put(const Vec<T, W>& value) {
    if constexpr (kHalf)
      word[0] = __builtin_bit_cast(uint16_t, value);
    else
      put_words(__builtin_bit_cast(Vec<uint32_t, kWords>, value));
  }
  __device__ Vec<T, W> get() const {
    if constexpr (kHalf) {
      return __builtin_bit_cast(Vec<T, W>, static_cast<uint16_t>(word[0]));
    } else {
      Vec<uint32_t, kWords> words;
#pragma unroll
      for (int i = 0; i < kWords; ++i) words.v[i] = word[i];
      return __builtin_bit_cast(Vec<T, W>, words);
    }
  }
  __device__ void widened(Compute<T> (&to)[W]) const {
    Vec<T, W> value = get();
#pragma unroll
    for (int i = 0; i < W; ++i) to[i] = widen(value.v[i]);
  }
  __device__ void narrowed(const Compute<T> (&from)[W]) {
    if constexpr (sizeof(T) == 2 && W % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = narrow_pair<T>(from[2 * i], from[2 * i + 1]);
    } else {
      Vec<T, W> value;
#pragma unroll
      for (int i = 0; i < W; ++i) value.v[i] = narrow<T>(from[i]);
      put(value);
    }
  }
  // What was made of it so far is not kept for later uses, which make it again.
  __device__ void forget() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(word[i]));
  }

 private:
  __device__ void put_words(const Vec<uint32_t, kWords>& words) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = words.v[i];
  }
};

template <int N, class T>
__device__ __forceinline__ void load(Compute<T> (&to)[N], const T* from) {
  Vec<T, N> raw = read<N>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(raw.v[i]);
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Compute<T> (&from)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    Vec<uint32_t, N / 2> words;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) words.v[i] = narrow_pair<T>(from[2 * i], from[2 * i + 1]);
    write(reinterpret_cast<uint32_t*>(to), words);
  } else {
    Vec<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; ++i) raw.v[i] = narrow<T>(from[i]);
    write(to, raw);
  }
}

// A float tensor whose dtype is known at run time only: for small operands beside the main data.
struct AnyFloat {
  void* data = nullptr;
  DType dtype = DType::F32;

  __device__ double get(int64_t i) const {
    switch (dtype) {
      case DType::F64:
        return static_cast<const double*>(data)[i];
      case DType::BF16:
        return __bfloat162float(static_cast<const bfloat*>(data)[i]);
      case DType::F16:
        return __half2float(static_cast<const half*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }
  __device__ void set(int64_t i, double value) const {
    switch (dtype) {
      case DType::F64:
        static_cast<double*>(data)[i] = value;
        break;
      case DType::BF16:
        static_cast<bfloat*>(data)[i] = __float2bfloat16_rn(static_cast<float>(value));
        break;
      case DType::F16:
        static_cast<half*>(data)[i] = __float2half_rn(static_cast<float>(value));
        break;
      default:
        static_cast<float*>(data)[i] = static_cast<float>(value);
    }
  }
};

}  // namespace megatron::cuda
