#include "megatron/base/error.h"
#include "megatron/kernels/kernel_table.h"

namespace megatron {

const KernelTable& cuda_kernels() {
  throw ConfigError("this build has no CUDA kernels: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace megatron
