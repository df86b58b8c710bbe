#include "megatron/base/error.h"
#include "megatron/kernels/gpu_memory.h"

namespace megatron {
namespace {

[[noreturn]] void reject() {
  throw ConfigError("this build has no CUDA: build with MEGATRON_CUDA=1 where nvcc is installed");
}

}  // namespace

void copy_on_gpu(const Stream&, void*, const void*, size_t) { reject(); }
void combine_on_gpu(const Stream&, const CombineArgs&) { reject(); }
void let_gpus_reach_each_other(std::span<const int>) { reject(); }

}  // namespace megatron
