#pragma once

#include "megatron/kernels/cuda/recurrent/ssd.cuh"

namespace megatron::cuda {

// The scan behind states [sequences, heads, channels, states] that are carried on, one token after the other.
template <class T>
void ssd_decode(const KernelContext& ctx, const SsdTask<T>& task, Compute<T>* carried, T* y);

}  // namespace megatron::cuda
