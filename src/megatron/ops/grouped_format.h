#pragma once

#include "megatron/ops/fp8_format.h"
#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// Rows go through the matrix of the expert that their place between the offsets says (LinearCall::offsets).
std::shared_ptr<const LinearFormat> grouped_format(const Tensor& offsets);

// The same in fp8: each expert has its own scale of its matrix, its rows and their gradients, or its own
// blocks of 128. Otherwise as fp8_format().
std::shared_ptr<const LinearFormat> grouped_fp8_format(RankContext& ctx, const Tensor& weight, Fp8Weight& fp8,
                                                       const Tensor& offsets, bool recorded);
// What every offset must be a multiple of in fp8; 1: matrices [experts, out, in] of this shape, or no rows,
// stay as they are.
int64_t grouped_fp8_alignment(const Fp8Weight* fp8, const Shape& weight);
bool grouped_fp8_takes(int64_t rows, const Fp8Weight* fp8, const Shape& weight);

}  // namespace megatron::ops
