#include "megatron/device/runtime.h"

#include "megatron/base/error.h"
#include "megatron/device/cpu/cpu_runtime.h"
#include "megatron/device/cuda_runtime.h"

namespace megatron {

void DeviceRuntime::begin_capture(void*) {
  throw ConfigError(fmt::format("{} cannot record what it runs: graphs are for GPUs", device()));
}

std::shared_ptr<DeviceRuntime> make_runtime(Device device) {
  switch (device.type) {
    case DeviceType::Cuda:
      return make_cuda_runtime(device.index);
    case DeviceType::Meta:
      return make_meta_runtime();
    default:
      return make_cpu_runtime();
  }
}

int cuda_device_count() { return count_cuda_devices(); }

}  // namespace megatron
