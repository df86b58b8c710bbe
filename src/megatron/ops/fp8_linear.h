#pragma once

#include "megatron/autograd/rank_context.h"

namespace megatron::ops {

// A matrix in fp8, as it is and transposed: GEMMs of fp8 read both operands along the dimension that they
// sum over. One scale serves all of it, or one each block of block_rows × 128.
struct Fp8Matrix {
  Tensor data, transposed;                 // [rows, columns], [columns, rows]
  Tensor inverse_scale, transposed_scale;  // as GemmArgs wants them; of one scale twice the same
  int64_t block_rows = 0;                  // 0: one scale; 1 or 128
};

// Delayed scaling of one kind of matrix, one fp32 element each. Undefined: the scale is made from the matrix
// at hand (current scaling), and nothing is noted.
struct Fp8Delay {
  Tensor scale;  // what values are multiplied by, from earlier steps
  Tensor amax;   // collects the largest magnitude that is met
};

// Memory that `result` has is used again.
void to_fp8(RankContext& ctx, const Tensor& x, DType dtype, Fp8Matrix& result, const Fp8Delay& delay = {},
            MemoryTag tag = MemoryTag::Activation);
// With a power of two for each block; block_rows: 1 or 128.
void to_fp8_blocks(RankContext& ctx, const Tensor& x, DType dtype, int64_t block_rows, Fp8Matrix& result,
                   MemoryTag tag = MemoryTag::Activation);

// How GEMMs with a weight are made in fp8, and the weight's own fp8 form, kept until its values change.
struct Fp8Weight {
  DType forward = DType::F8E4M3, gradient = DType::F8E5M2;
  bool wide_wgrad = false;  // the weight's gradient is a GEMM of x and dy as they were
  bool blocks = false;      // a scale per 128 × 128 of the weight, per 1 × 128 of inputs and gradients
  Fp8Matrix matrix;
  bool current = false;                                // the matrix has the weight's values
  Fp8Delay input_delay, weight_delay, gradient_delay;  // of delayed scaling
};

// linear(x, weight, bias) with its three GEMMs in fp8: x [tokens, in], weight [out, in]. Forward keeps x
// as transposed fp8, or as it is for a wide_wgrad. Where the hardware's GEMMs do not take the shape (all
// three sizes are multiples of 16), it is an ordinary linear.
Tensor fp8_linear(RankContext& ctx, const Tensor& x, const Weight& weight, Fp8Weight& fp8,
                  const Weight& bias = {});

}  // namespace megatron::ops
