#pragma once

#include <cstdint>

#include "megatron/tensor/philox.h"

// Keys and values of a paged cache in e4m3. A row of the pool holds a token's heads, each contiguous, and
// behind them, at the end of the row, an fp32 scale of every head: a value is what its byte says times the
// scale. A tensor [rows, heads, head_dim] of such a pool has the row's bytes as stride(0); a scale is the
// head's largest magnitude / 448, or 1 where that is 0.
namespace megatron {

inline constexpr int64_t kFp8Alignment = 16;  // of rows and of their scales, in bytes

// Bytes of the scales of a row.
MEGATRON_HOST_DEVICE constexpr int64_t fp8_scale_bytes(int64_t heads) {
  return (heads * 4 + kFp8Alignment - 1) / kFp8Alignment * kFp8Alignment;
}
MEGATRON_HOST_DEVICE constexpr int64_t fp8_row_bytes(int64_t heads, int64_t head_dim) {
  return (heads * head_dim + kFp8Alignment - 1) / kFp8Alignment * kFp8Alignment + fp8_scale_bytes(heads);
}
// Where they begin in a row of `row_bytes`.
MEGATRON_HOST_DEVICE constexpr int64_t fp8_scale_offset(int64_t row_bytes, int64_t heads) {
  return row_bytes - fp8_scale_bytes(heads);
}

}  // namespace megatron
