#pragma once

#include "megatron/kernels/kernel_table.h"

namespace megatron {

const KernelTable& cpu_kernels();
const KernelTable& meta_kernels();  // every kernel does nothing: ops still checks shapes and allocates
const KernelTable& cuda_kernels();  // kernels/cuda, or kernels/none, which throws

}  // namespace megatron
