#pragma once

#include <type_traits>
#include <vector>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/dot_gemm.h"
#include "megatron/kernels/cpu/isa/scratch.h"
#include "megatron/kernels/narrow_weight.h"

// GEMMs whose time is that of reading the weights: few rows of a, and b in a format narrower than the fp32 in
// which sums are made. Rows of a are widened once; b passes by as one stream, column after column. An element
// is summed in lanes that are joined in one order, so its bits depend neither on the other rows and columns
// nor on the instruction set.
namespace megatron::cpu::MEGATRON_ISA {

typedef int32_t DotInts __attribute__((vector_size(kDotLanes * sizeof(int32_t))));

// A stream says how columns of one format are read: steps of kStep numbers, for each of which a row of a
// holds kWide floats, and groups of kGroup numbers that share a scale.
template <class Number, DType Dtype>
struct StreamFormat {
  using Weight = Number;
  using Scale = std::conditional_t<scale_dtype(Dtype) == DType::BF16, bf16, float>;
  static constexpr int64_t kGroup = scale_columns(Dtype), kNumbers = numbers_in_element(Dtype);
};

// Calls step(elements, at) for each step of a column of k numbers. Behind the last numbers lie zeros.
template <class Stream, class F>
void for_each_step(const typename Stream::Weight* b, int64_t k, F&& step) {
  constexpr int64_t kNumbers = Stream::kNumbers, kElements = Stream::kStep / kNumbers;
  constexpr int64_t kLine = 64 / sizeof(typename Stream::Weight);
  int64_t at = 0;
  for (; at + Stream::kStep <= k; at += Stream::kStep) {
    const typename Stream::Weight* from = b + at / kNumbers;
    for (int64_t line = 0; line < kElements; line += kLine) prefetch_stream(from + line);
    step(from, at);
  }
  if (at < k) {
    typename Stream::Weight last[kElements] = {};
    std::copy(b + at / kNumbers, b + (k + kNumbers - 1) / kNumbers, last);
    step(last, at);
  }
}

// bf16: two lanes' worth of numbers lie in each 32 bits, so rows of a are held as the even numbers of each
// 32, then the odd ones.
struct Bf16Stream : StreamFormat<bf16, DType::BF16> {
  static constexpr int64_t kStep = 2 * kDotLanes, kWide = kStep;

  template <class T>
  static void widen(const T* x, int64_t k, float* wide) {
    for (int64_t i = 0; i < k; ++i)
      wide[i / kStep * kStep + i % 2 * kDotLanes + i % kStep / 2] = static_cast<float>(x[i]);
  }

  template <int Rows>
  static void dot(const bf16* b, const float*, const float* a, int64_t a_row, int64_t k, float* result) {
    DotLanes even[Rows] = {}, odd[Rows] = {};
    for_each_step<Bf16Stream>(b, k, [&](const bf16* from, int64_t at) {
      DotBits bits;
      __builtin_memcpy(&bits, from, sizeof bits);
      const DotLanes low = reinterpret_cast<DotLanes>(bits << 16),
                     high = reinterpret_cast<DotLanes>(bits & 0xffff0000u);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) {
        even[i] += low * load_lanes(a + i * a_row + at, kDotLanes);
        odd[i] += high * load_lanes(a + i * a_row + at + kDotLanes, kDotLanes);
      }
    });
    for (int i = 0; i < Rows; ++i) result[i] = join_dot(even[i] + odd[i]);
  }
};

// int8: four lanes' worth of numbers lie in each 32 bits, so rows of a are held as every fourth number of
// each 64, from the first, the second and so on. A step is a group.
struct Int8Stream : StreamFormat<int8_t, DType::I8> {
  static constexpr int64_t kStep = kGroup, kWide = kStep, kChunk = 4 * kDotLanes;

  template <class T>
  static void widen(const T* x, int64_t k, float* wide) {
    for (int64_t i = 0; i < k; ++i)
      wide[i / kChunk * kChunk + i % 4 * kDotLanes + i % kChunk / 4] = static_cast<float>(x[i]);
  }

  template <int Rows>
  static void dot(const int8_t* b, const float* scales, const float* a, int64_t a_row, int64_t k,
                  float* result) {
    DotLanes sums[Rows] = {};
    for_each_step<Int8Stream>(b, k, [&](const int8_t* from, int64_t at) {
      DotLanes part[Rows] = {};
#pragma GCC unroll 2
      for (int64_t chunk = 0; chunk < kStep; chunk += kChunk) {
        DotInts bytes;
        __builtin_memcpy(&bytes, from + chunk, sizeof bytes);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          const DotLanes weights = __builtin_convertvector(bytes << (24 - 8 * c) >> 24, DotLanes);
#pragma GCC unroll 4
          for (int i = 0; i < Rows; ++i)
            part[i] += weights * load_lanes(a + i * a_row + at + chunk + c * kDotLanes, kDotLanes);
        }
      }
      const float scale = scales[at / kGroup];
      for (int i = 0; i < Rows; ++i) sums[i] += scale * part[i];
    });
    for (int i = 0; i < Rows; ++i) result[i] = join_dot(sums[i]);
  }
};

// int4: eight lanes' worth of numbers lie in each 32 bits, so rows of a are held as every eighth number of
// each 128. Four bits are not shifted down but masked where they lie, which makes them 16ᶜ times as large for
// the c-th of each 16 bits, and that number of a is held divided by 16ᶜ. Behind them lies −8 times the sum of
// each lane's eight, where sums begin, since q − 8 is meant. Four lanes share a scale.
struct Int4Stream : StreamFormat<uint8_t, kInt4> {
  static constexpr int64_t kStep = 8 * kDotLanes, kWide = kStep + kDotLanes;

  template <class T>
  static void widen(const T* x, int64_t k, float* wide) {
    constexpr float kInverse[4] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f};
    for (int64_t i = 0; i < k; ++i) {
      float* step = wide + i / kStep * kWide;
      const float value = static_cast<float>(x[i]);
      const int64_t lane = i % kStep / 8;
      step[i % 8 * kDotLanes + lane] = value * kInverse[i % 4];
      float& offset = step[kStep + lane];
      offset = (i % 8 ? offset : 0) - 8 * value;
    }
  }

  template <int Rows>
  static void dot(const uint8_t* b, const bf16* scales, const float* a, int64_t a_row, int64_t k,
                  float* result) {
    const int64_t groups = (k + kGroup - 1) / kGroup;
    DotLanes sums[Rows] = {};
    for_each_step<Int4Stream>(b, k, [&](const uint8_t* from, int64_t at) {
      DotBits words;
      __builtin_memcpy(&words, from, sizeof words);
      DotLanes weights[8];
#pragma GCC unroll 8
      for (int c = 0; c < 8; ++c) {
        const DotBits bits = (c < 4 ? words : words >> 16) & (15u << 4 * (c % 4));
        weights[c] = __builtin_convertvector(reinterpret_cast<DotInts>(bits), DotLanes);
      }
      const DotLanes scale = spread(scales + at / kGroup, groups - at / kGroup);
      const float* x = a + at / kStep * kWide;
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i, x += a_row) {
        DotLanes part = load_lanes(x + kStep, kDotLanes);
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c) part += weights[c] * load_lanes(x + c * kDotLanes, kDotLanes);
        sums[i] += scale * part;
      }
    });
    for (int i = 0; i < Rows; ++i) result[i] = join_dot(sums[i]);
  }

 private:
  // Up to four scales, each in four lanes. Vectors of the instruction set alone are permuted, or put side by
  // side in memory, at the speed of arithmetic.
  static DotLanes spread(const bf16* scales, int64_t count) {
    uint64_t four = 0;
    if (count >= 4)
      __builtin_memcpy(&four, scales, sizeof four);
    else
      for (int64_t i = 0; i < count; ++i) four |= static_cast<uint64_t>(scales[i].bits) << 16 * i;
    constexpr DotBits kShift = {16, 16, 16, 16, 0, 0, 0, 0, 16, 16, 16, 16, 0, 0, 0, 0};
    DotBits pairs;
    if constexpr (kVectorBytes == 64) {
      typedef uint64_t Eight __attribute__((vector_size(64)));
      constexpr DotBits kPair = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
      pairs = __builtin_shuffle(reinterpret_cast<DotBits>(four + Eight{}), kPair);
    } else {
      typedef uint32_t Eight __attribute__((vector_size(32)));
      const Eight halves[2] = {static_cast<uint32_t>(four) + Eight{},
                               static_cast<uint32_t>(four >> 32) + Eight{}};
      __builtin_memcpy(&pairs, halves, sizeof pairs);
    }
    return reinterpret_cast<DotLanes>((pairs << kShift) & 0xffff0000u);
  }
};

// c = alpha · a · b + beta · c (+ bias). a and bias of In, a along k; b: columns of Stream::Weight along k;
// scales: of each column, one behind the other.
template <class Stream, class In, class Out>
class StreamGemm {
 public:
  using Weight = typename Stream::Weight;
  using Scale = typename Stream::Scale;
  static constexpr int64_t kTileColumns = 8;

  StreamGemm(const KernelContext& ctx, const GemmProblem& p, const Scale* scales)
      : ctx_(ctx),
        p_(p),
        scales_(scales),
        groups_((p.k + Stream::kGroup - 1) / Stream::kGroup),
        padded_((p.k + Stream::kStep - 1) / Stream::kStep * Stream::kWide),
        wide_(ctx, p.m * padded_) {}

  void run() {
    ctx_.pool.parallel_for(p_.m, std::max<int64_t>(1, kGrain / padded_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) widen(row);
    });
    const ReadStream weights{p_.b, p_.b_column * static_cast<int64_t>(sizeof(Weight))};
    ctx_.pool.parallel_for(p_.n, 16, weights, [&](int64_t begin, int64_t end) {
      for (int64_t column = begin; column < end; column += kTileColumns) {
        const int64_t behind = std::min(column + kTileColumns, end);
        int64_t row = 0;
        for (; row + 4 <= p_.m; row += 4) tile<4>(row, column, behind);
        for (; row < p_.m; ++row) tile<1>(row, column, behind);
      }
    });
  }

 private:
  void widen(int64_t row) {
    float* target = wide_.data() + row * padded_;
    if (p_.k % Stream::kStep) std::fill_n(target + padded_ - Stream::kWide, Stream::kWide, 0.f);
    Stream::widen(static_cast<const In*>(p_.a) + row * p_.a_row, p_.k, target);
  }

  // Rows stay in the cache while these columns pass.
  template <int Rows>
  void tile(int64_t row, int64_t column, int64_t end) {
    for (; column < end; ++column) rows<Rows>(row, column);
  }

  template <int Rows>
  void rows(int64_t row, int64_t column) {
    float sums[Rows];
    Stream::template dot<Rows>(static_cast<const Weight*>(p_.b) + column * p_.b_column,
                               scales_ ? scales_ + column * groups_ : nullptr, wide_.data() + row * padded_,
                               padded_, p_.k, sums);
    const auto* bias = static_cast<const In*>(p_.bias);
    const auto alpha = static_cast<float>(p_.alpha), beta = static_cast<float>(p_.beta);
    for (int i = 0; i < Rows; ++i) {
      Out& target = static_cast<Out*>(p_.c)[(row + i) * p_.c_row + column * p_.c_column];
      float value = alpha * sums[i];
      if (bias) value += static_cast<float>(bias[column]);
      if (beta != 0) value += beta * static_cast<float>(target);
      target = Out(value);
    }
  }

  const KernelContext& ctx_;
  GemmProblem p_;
  const Scale* scales_;
  int64_t groups_, padded_;
  Scratch<float> wide_;
};

template <class Stream, class In, class Out>
void stream_gemm(const KernelContext& ctx, const GemmProblem& p,
                 const typename Stream::Scale* scales = nullptr) {
  if (p.m > 0 && p.n > 0) StreamGemm<Stream, In, Out>(ctx, p, scales).run();
}

inline void stream_bf16(const KernelContext& ctx, const GemmProblem& p) {
  if (p.out == DType::BF16) return stream_gemm<Bf16Stream, bf16, bf16>(ctx, p);
  stream_gemm<Bf16Stream, bf16, float>(ctx, p);
}

inline bool streams_bf16(const GemmProblem& p) {
  return p.in == DType::BF16 && (p.out == DType::BF16 || p.out == DType::F32) && p.m <= kStreamRows &&
         p.k > 0 && p.a_column == 1 && p.b_row == 1;
}

}  // namespace megatron::cpu::MEGATRON_ISA
