#pragma once

#include "megatron/kernels/cuda/gemm/grouped_gemm.cuh"

namespace megatron::cuda {

// fp8 operands of a GroupedTask, and what their elements are multiplied by. With `blocks` the scale of an
// operand changes every 128 along the summed dimension, from a_block or b_block floats on; a_side is the step
// from row to row of a (from column to column of the weight gradient's a), b_side that from 128 columns to
// the next (from column to column). Otherwise a_side and b_side are steps from expert to expert.
struct Fp8Scales {
  bool a_e5m2, b_e5m2, blocks;
  const float *a, *b;
  int64_t a_side, a_block, b_side, b_block, b_expert;
};

// wgmma on sm_90a, for offsets that are multiples of 16 (blocks: of 128). False, and nothing done, where GPU,
// formats, strides or alignment do not fit.
template <class Out>
bool fp8_grouped_gemm(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales);
template <class Out>
bool fp8_grouped_gemm_weight(const KernelContext& ctx, const GroupedTask& task, const Fp8Scales& scales);

}  // namespace megatron::cuda
