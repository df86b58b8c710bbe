#include "megatron/base/error.h"
#include "megatron/device/cuda_runtime.h"

namespace megatron {

std::shared_ptr<DeviceRuntime> make_cuda_runtime(int) {
  throw ConfigError(
      "this build has no CUDA: use --device cpu, or build with MEGATRON_CUDA=1 where nvcc is installed");
}

int count_cuda_devices() { return 0; }

}  // namespace megatron
