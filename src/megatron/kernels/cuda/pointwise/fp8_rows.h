#pragma once

#include "megatron/kernels/index.h"
#include "megatron/kernels/kernel_table.h"
#include "megatron/kernels/qkv_cache.h"

namespace megatron::cuda {

// Rows of a pool in e4m3 with scales: kernels/fp8_pages.h.
void put_fp8_rows(const KernelContext& ctx, const PutRowsArgs& args);
// False, and nothing was done, where heads are too wide.
bool fp8_qkv_cache(const KernelContext& ctx, const QkvCacheArgs& args);

}  // namespace megatron::cuda
