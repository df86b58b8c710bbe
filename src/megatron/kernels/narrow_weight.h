#pragma once

#include "megatron/base/dtype.h"

namespace megatron {

// Weights that are kept in fewer bits than GEMMs multiply, with a scale for some numbers of a row.
//   int8, e4m3: an fp32 scale for each 128 numbers; x ≈ q · scale.
//   int4 (CPU): a bf16 scale for each 32 numbers, 4.5 bits a number; x ≈ (q − 8) · scale with q in [0, 15]. A
//   byte has two numbers, the first in its low half; an odd row ends with half a byte. The scale has the sign
//   that makes the number of largest magnitude −8.
inline constexpr DType kInt4 = DType::U8;

constexpr int64_t numbers_in_element(DType narrow) { return narrow == kInt4 ? 2 : 1; }
constexpr int64_t scale_columns(DType narrow) { return narrow == kInt4 ? 32 : 128; }
constexpr DType scale_dtype(DType narrow) { return narrow == kInt4 ? DType::BF16 : DType::F32; }

}  // namespace megatron
