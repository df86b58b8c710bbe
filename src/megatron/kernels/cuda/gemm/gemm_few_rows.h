#pragma once

#include "megatron/kernels/gemm.h"
#include "megatron/kernels/gemm_fused.h"

namespace megatron::cuda {

// GEMMs of at most 16 rows in bf16 and fp16, which read their weights at the speed of memory. Each returns
// false, and has done nothing, where the shapes, strides or alignments do not fit. A row's result does not
// depend on the other rows.
bool few_rows_gemm(const KernelContext& ctx, const GemmArgs& args);
bool few_rows_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args);

}  // namespace megatron::cuda
