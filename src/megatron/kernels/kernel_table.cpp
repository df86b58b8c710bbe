#include "megatron/kernels/kernel_table.h"

#include "megatron/kernels/cpu/isa_tables.h"

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

std::string cpu_instruction_set() { return cpu::has_v4() ? "AVX-512" : "AVX2"; }

}  // namespace megatron
