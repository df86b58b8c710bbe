#include "megatron/device/gpu_facts.h"

#include <cuda_runtime_api.h>

namespace megatron {

std::vector<GpuFacts> gpu_facts() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();  // not to be reported by the next call
  std::vector<GpuFacts> facts;
  for (int index = 0; index < count; ++index) {
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      if (cudaDeviceGetAttribute(&value, which, index) != cudaSuccess) cudaGetLastError();
      return value;
    };
    GpuFacts gpu;
    gpu.compute_capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    gpu.shared_memory = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    facts.push_back(gpu);
  }
  return facts;
}

}  // namespace megatron
