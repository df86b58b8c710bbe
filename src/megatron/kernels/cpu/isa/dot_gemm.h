#pragma once

#include <algorithm>

#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/isa/vector.h"

// A GEMM of dot products for fp32 operands that both lie along k, as activations and weights of linears do.
// Every element is summed in sixteen lanes that are joined in one order, so its bits depend neither on the
// other rows and columns nor on the instruction set. Weights are read once where there are few rows.
namespace megatron::cpu::MEGATRON_ISA {

inline constexpr int64_t kDotRows = 64, kDotColumns = 64;  // of a task
inline constexpr int64_t kStreamRows = 16;  // up to which weights are read from memory as one stream
inline constexpr int kDotLanes = 16, kDotTile = kVectorBytes == 64 ? 4 : 2;

typedef float DotLanes __attribute__((vector_size(kDotLanes * sizeof(float))));
typedef uint32_t DotBits __attribute__((vector_size(kDotLanes * sizeof(uint32_t))));
typedef uint16_t DotHalves __attribute__((vector_size(kDotLanes * sizeof(uint16_t))));

inline bool dot_gemm_supports(const GemmProblem& p) {
  return p.in == DType::F32 && p.out == DType::F32 && p.a_column == 1 && p.b_row == 1;
}

// Of a stream, asks for what will be read some columns later. Past its end that does nothing.
inline void prefetch_stream(const void* p) {
  constexpr int64_t kAhead = 4096;
  __builtin_prefetch(static_cast<const char*>(p) + kAhead);
}

inline DotLanes load_lanes(const float* p, int64_t count) {
  DotLanes lanes{};
  if (count >= kDotLanes)
    __builtin_memcpy(&lanes, p, sizeof lanes);
  else
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return lanes;
}

inline DotLanes load_lanes(const bf16* p, int64_t count) {
  DotHalves halves{};
  if (count >= kDotLanes)
    __builtin_memcpy(&halves, p, sizeof halves);
  else
    for (int64_t i = 0; i < count; ++i) halves[i] = p[i].bits;
  return reinterpret_cast<DotLanes>(__builtin_convertvector(halves, DotBits) << 16);
}
inline DotLanes load_lanes(const fp16* p, int64_t count) {
  DotLanes lanes{};
  for (int64_t i = 0; i < std::min<int64_t>(count, kDotLanes); ++i) lanes[i] = static_cast<float>(p[i]);
  return lanes;
}

// The upper half of the lanes is added to the lower, and so on.
inline float join_dot(DotLanes lanes) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight halves[2];
  __builtin_memcpy(halves, &lanes, sizeof lanes);
  const Eight eight = halves[0] + halves[1];
  Four quarters[2];
  __builtin_memcpy(quarters, &eight, sizeof eight);
  const Four four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Rows × Columns elements of c, from rows of a and columns of b that are `a_step` and `b_step` apart.
template <int Rows, int Columns>
void dot_tile(const GemmProblem& p, int64_t row, int64_t column) {
  const float* a = static_cast<const float*>(p.a) + row * p.a_row;
  const float* b = static_cast<const float*>(p.b) + column * p.b_column;
  DotLanes sums[Rows][Columns] = {};
  for (int64_t k = 0; k < p.k; k += kDotLanes) {
    const int64_t count = p.k - k;
    DotLanes weights[Columns];
    if constexpr (Columns == 1) prefetch_stream(b + k);
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) weights[j] = load_lanes(b + j * p.b_column + k, count);
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) {
      const DotLanes x = load_lanes(a + i * p.a_row + k, count);
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) sums[i][j] += x * weights[j];
    }
  }
  const float* bias = static_cast<const float*>(p.bias);
  const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Columns; ++j) {
      float& target = static_cast<float*>(p.c)[(row + i) * p.c_row + (column + j) * p.c_column];
      float value = alpha * join_dot(sums[i][j]);
      if (bias) value += bias[column + j];
      if (beta != 0) value += beta * target;
      target = value;
    }
}

template <int Rows>
void dot_rows(const GemmProblem& p, int64_t row) {
  int64_t column = 0;
  for (; column + kDotTile <= p.n; column += kDotTile) dot_tile<Rows, kDotTile>(p, row, column);
  for (; column < p.n; ++column) dot_tile<Rows, 1>(p, row, column);
}

// With few rows the time is that of reading b: column after column, since several streams at once read memory
// at half the speed of one.
inline void dot_stream(const GemmProblem& p) {
  for (int64_t column = 0; column < p.n; ++column) {
    int64_t row = 0;
    for (; row + 4 <= p.m; row += 4) dot_tile<4, 1>(p, row, column);
    for (; row < p.m; ++row) dot_tile<1, 1>(p, row, column);
  }
}

// More rows than kStreamRows come in tasks of kDotRows by kDotColumns at most, so that the columns of b stay
// in the cache while rows pass.
inline void dot_gemm(const GemmProblem& p) {
  if (p.m <= kStreamRows) return dot_stream(p);
  int64_t row = 0;
  for (; row + kDotTile <= p.m; row += kDotTile) dot_rows<kDotTile>(p, row);
  for (; row < p.m; ++row) dot_rows<1>(p, row);
}

}  // namespace megatron::cpu::MEGATRON_ISA
