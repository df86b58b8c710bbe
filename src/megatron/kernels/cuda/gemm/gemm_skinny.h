#pragma once

#include "megatron/kernels/gemm.h"
#include "megatron/kernels/gemm_fused.h"

namespace megatron::cuda {

inline constexpr int64_t kSkinnyRows = 64;  // at most
inline constexpr int64_t kFewerRows = 8;    // up to as many, few_rows_gemm is faster

// GEMMs of at most kSkinnyRows rows in bf16 on sm_90a, which read their weights once. Each returns false, and
// has done nothing, where the GPU, the shapes, strides or alignments do not fit, or cuBLASLt is faster: of
// more than 16 rows it is where the weight has too few rows for all SMs. A row's result does not depend on
// the other rows.
bool skinny_gemm(const KernelContext& ctx, const GemmArgs& args);
bool skinny_swiglu(const KernelContext& ctx, const GemmSwigluArgs& args);

}  // namespace megatron::cuda
