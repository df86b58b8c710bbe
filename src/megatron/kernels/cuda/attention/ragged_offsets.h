#pragma once

#include <span>

#include "megatron/kernels/kernel_table.h"

namespace megatron::cuda {

// Packed sequences as cuDNN's ragged tensors: `places` sequences, of which the last are empty.
// Writes their lengths [places], and for each tensor, by the elements between its tokens, where they begin
// and end in it [places + 1].
void write_ragged_offsets(const KernelContext& ctx, const Tensor& cu_seqlens, int64_t places,
                          std::span<const int64_t> token_strides, int32_t* out);

}  // namespace megatron::cuda
