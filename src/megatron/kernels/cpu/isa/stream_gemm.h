#pragma once

#include <vector>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/dot_gemm.h"
#include "megatron/kernels/cpu/isa/scratch.h"

// GEMMs whose time is that of reading the weights: few rows of a, and b in a format narrower than the fp32 in
// which sums are made. Rows of a are widened once; b passes by as one stream, column after column. An element
// is summed in lanes that are joined in one order, so its bits depend neither on the other rows and columns
// nor on the instruction set.
namespace megatron::cpu::MEGATRON_ISA {

inline constexpr int64_t kScaleColumns = 128;  // of a weight, that share a scale

typedef int32_t DotInts __attribute__((vector_size(kDotLanes * sizeof(int32_t))));

// bf16: two lanes' worth of numbers lie in each 32 bits, so rows of a are held as the even numbers of each
// 32, then the odd ones.
struct Bf16Stream {
  using Weight = bf16;
  static constexpr int64_t kStep = 2 * kDotLanes;

  template <class T>
  static void widen(const T* x, int64_t k, float* wide) {
    for (int64_t i = 0; i < k; ++i)
      wide[i / kStep * kStep + i % 2 * kDotLanes + i % kStep / 2] = static_cast<float>(x[i]);
  }

  template <int Rows>
  static void dot(const bf16* b, const float*, const float* a, int64_t a_row, int64_t k, float* result) {
    DotLanes even[Rows] = {}, odd[Rows] = {};
    const auto step = [&](const bf16* from, int64_t at) {
      DotBits bits;
      __builtin_memcpy(&bits, from, sizeof bits);
      const DotLanes low = reinterpret_cast<DotLanes>(bits << 16),
                     high = reinterpret_cast<DotLanes>(bits & 0xffff0000u);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) {
        even[i] += low * load_lanes(a + i * a_row + at, kDotLanes);
        odd[i] += high * load_lanes(a + i * a_row + at + kDotLanes, kDotLanes);
      }
    };
    int64_t at = 0;
    for (; at + kStep <= k; at += kStep) {
      prefetch_stream(b + at);
      step(b + at, at);
    }
    if (at < k) {
      bf16 last[kStep] = {};
      std::copy(b + at, b + k, last);
      step(last, at);
    }
    for (int i = 0; i < Rows; ++i) result[i] = join_dot(even[i] + odd[i]);
  }
};

// int8 with a scale for each kScaleColumns numbers of a column. Four lanes' worth of numbers lie in each 32
// bits, so rows of a are held as every fourth number of each 64, from the first, the second and so on.
struct Int8Stream {
  using Weight = int8_t;
  static constexpr int64_t kStep = kScaleColumns, kChunk = 4 * kDotLanes;

  template <class T>
  static void widen(const T* x, int64_t k, float* wide) {
    for (int64_t i = 0; i < k; ++i)
      wide[i / kChunk * kChunk + i % 4 * kDotLanes + i % kChunk / 4] = static_cast<float>(x[i]);
  }

  template <int Rows>
  static void dot(const int8_t* b, const float* scales, const float* a, int64_t a_row, int64_t k,
                  float* result) {
    DotLanes sums[Rows] = {};
    const auto step = [&](const int8_t* from, int64_t at) {
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
      const float scale = scales[at / kStep];
      for (int i = 0; i < Rows; ++i) sums[i] += scale * part[i];
    };
    int64_t at = 0;
    for (; at + kStep <= k; at += kStep) {
      for (int64_t chunk = 0; chunk < kStep; chunk += kChunk) prefetch_stream(b + at + chunk);
      step(b + at, at);
    }
    if (at < k) {
      int8_t last[kStep] = {};
      std::copy(b + at, b + k, last);
      step(last, at);
    }
    for (int i = 0; i < Rows; ++i) result[i] = join_dot(sums[i]);
  }
};

// c = alpha · a · b + beta · c (+ bias). a and bias of In, a along k; b: columns of Stream::Weight along k;
// scales: of each column, one behind the other.
template <class Stream, class In, class Out>
class StreamGemm {
 public:
  static constexpr int64_t kTileColumns = 8;

  StreamGemm(const KernelContext& ctx, const GemmProblem& p, const float* scales)
      : ctx_(ctx),
        p_(p),
        scales_(scales),
        groups_((p.k + kScaleColumns - 1) / kScaleColumns),
        padded_((p.k + Stream::kStep - 1) / Stream::kStep * Stream::kStep),
        wide_(ctx, p.m * padded_) {}

  void run() {
    ctx_.pool.parallel_for(p_.m, std::max<int64_t>(1, kGrain / padded_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) widen(row);
    });
    const ReadStream weights{p_.b, p_.b_column * static_cast<int64_t>(sizeof(typename Stream::Weight))};
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
    if (padded_ > p_.k) std::fill_n(target + padded_ - Stream::kStep, Stream::kStep, 0.f);
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
    Stream::template dot<Rows>(static_cast<const typename Stream::Weight*>(p_.b) + column * p_.b_column,
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
  const float* scales_;
  int64_t groups_, padded_;
  Scratch<float> wide_;
};

template <class Stream, class In, class Out>
void stream_gemm(const KernelContext& ctx, const GemmProblem& p, const float* scales = nullptr) {
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
