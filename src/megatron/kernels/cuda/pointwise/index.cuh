#pragma once

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {

// out[i] = table[ids[i] / divisor − first]; zero where ids[i] is negative or the row is not in the table.
void gather(const KernelContext& ctx, const Tensor& table, const Tensor& ids, const Tensor& out,
            int64_t first, int64_t divisor);

void scatter_add_rows(const KernelContext& ctx, const ScatterAddRowsArgs& args);

}  // namespace megatron::cuda
