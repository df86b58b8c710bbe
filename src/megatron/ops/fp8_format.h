#pragma once

#include "megatron/ops/linear_format.h"

namespace megatron::ops {

// Delayed scaling of one kind of matrix, one fp32 element each. Undefined: the scale is made from the matrix
// at hand (current scaling), and nothing is noted.
struct Fp8Delay {
  Tensor scale;  // what values are multiplied by, from earlier steps
  Tensor amax;   // collects the largest magnitude that is met
};

// Memory that `result` has is used again.
void to_fp8(RankContext& ctx, const Tensor& x, DType dtype, Operand& result, const Fp8Delay& delay = {},
            MemoryTag tag = MemoryTag::Activation);
// With a power of two for each block; block_rows: 1 or 128.
void to_fp8_blocks(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows, Operand& result,
                   MemoryTag tag = MemoryTag::Activation);

// How GEMMs with a weight are made in fp8, and the weight's own fp8 form, kept until its values change.
struct Fp8Weight {
  DType forward = DType::F8E4M3, gradient = DType::F8E5M2;
  bool wide_wgrad = false;  // the weight's gradient is a GEMM of x and dy as they were
  bool blocks = false;      // a scale per 128 × 128 of the weight, per 1 × 128 of inputs and gradients
  bool delayed = false;     // scaled by what earlier steps met
  Operand matrix;
  bool current = false;                                // the matrix has the weight's values
  Fp8Delay input_delay, weight_delay, gradient_delay;  // of delayed scaling
};

// What a linear's GEMMs read of it. Not recorded: the amax of its inputs leaves no trace.
Fp8Weight as_read(Fp8Weight fp8, bool recorded);

// The three GEMMs of a linear in fp8, with the weight's matrix of now, which is made where it is not current.
// The input is kept as transposed fp8, or as it is for a wide_wgrad. Not recorded: its amax leaves no trace.
std::shared_ptr<const LinearFormat> fp8_format(RankContext& ctx, const Tensor& weight, Fp8Weight& fp8,
                                               bool recorded);
// Whether the hardware's GEMMs take `rows` of x [.., in] with a weight [out, in].
bool fp8_takes(int64_t rows, const Tensor& weight);

}  // namespace megatron::ops
