#include "megatron/kernels/cuda/attention/ragged_offsets.h"

#include "megatron/kernels/cuda/core/launch.cuh"

namespace megatron::cuda {
namespace {

constexpr size_t kMaxTensors = 12;

struct TokenStrides {
  int count = 0;
  int32_t each[kMaxTensors];
};

__global__ void ragged_offsets_kernel(const int32_t* cu, int sequences, int places, TokenStrides strides,
                                      int32_t* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > places) return;
  const int32_t begin = cu[min(i, sequences)];
  if (i < places) out[i] = cu[min(i + 1, sequences)] - begin;
  for (int tensor = 0; tensor < strides.count; ++tensor)
    out[places + tensor * (places + 1) + i] = begin * strides.each[tensor];
}

}  // namespace

void write_ragged_offsets(const KernelContext& ctx, const Tensor& cu_seqlens, int64_t places,
                          std::span<const int64_t> token_strides, int32_t* out) {
  require(token_strides.size() <= kMaxTensors, "ragged offsets of {} tensors", token_strides.size());
  TokenStrides strides;
  for (int64_t stride : token_strides) strides.each[strides.count++] = static_cast<int32_t>(stride);
  ragged_offsets_kernel<<<blocks_for(places + 1, kThreads), kThreads, 0, stream_of(ctx)>>>(
      pointer<int32_t>(cu_seqlens), static_cast<int>(cu_seqlens.size(0)) - 1, static_cast<int>(places),
      strides, out);
  check_launch("ragged_offsets");
}

}  // namespace megatron::cuda
