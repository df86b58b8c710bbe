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
  Operand matrix;
  bool current = false;                                // the matrix has the weight's values
  Fp8Delay input_delay, weight_delay, gradient_delay;  // of delayed scaling
};

// linear(x, weight, bias) with its three GEMMs in fp8: x [tokens, in], weight [out, in]. Forward keeps x
// as transposed fp8, or as it is for a wide_wgrad. Where the hardware's GEMMs do not take the shape (all
// three sizes are multiples of 16), it is an ordinary linear.
Tensor fp8_linear(RankContext& ctx, const Tensor& x, const Weight& weight, Fp8Weight& fp8,
                  const Weight& bias = {});

}  // namespace megatron::ops
