#include "megatron/kernels/kernel_table.h"

#include "megatron/kernels/backends.h"

namespace megatron {

const KernelTable& kernels_for(Device device) {
  switch (device.type) {
    case DeviceType::Cuda:
      return cuda_kernels();
    case DeviceType::Meta:
      return meta_kernels();
    default:
      return cpu_kernels();
  }
}

}  // namespace megatron
