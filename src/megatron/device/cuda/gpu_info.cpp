#include "megatron/device/gpu_info.h"

#include <cuda_runtime_api.h>

#include <algorithm>

namespace megatron {
namespace {

std::string words(cudaError_t error) {
  cudaGetLastError();  // a refused call must not be reported again by the next one
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

GpuInfo look_at(int index, int count) {
  GpuInfo gpu;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error == cudaSuccess) {
    gpu.name = properties.name;
    gpu.compute_capability = 10 * properties.major + properties.minor;
    gpu.sm_count = properties.multiProcessorCount;
    gpu.total_bytes = properties.totalGlobalMem;
    error = cudaSetDevice(index);
  }
  if (error == cudaSuccess) error = cudaMemGetInfo(&gpu.free_bytes, &gpu.total_bytes);
  if (error != cudaSuccess) {
    gpu.fault = words(error);
    return gpu;
  }
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != index && cudaDeviceCanAccessPeer(&can, index, other) == cudaSuccess && can)
      gpu.reaches.push_back(other);
  }
  return gpu;
}

}  // namespace

GpuReport look_for_gpus() {
  GpuReport report{.built_in = true};
  cudaDriverGetVersion(&report.driver_version);
  cudaRuntimeGetVersion(&report.runtime_version);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    report.fault = words(error);
    return report;
  }
  for (int index = 0; index < count; ++index) report.gpus.push_back(look_at(index, count));
  return report;
}

size_t min_gpu_memory(int64_t first) {
  int count = 0;
  size_t least = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  for (int index = 0; index < count && index < first; ++index) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    least = least == 0 ? properties.totalGlobalMem : std::min(least, properties.totalGlobalMem);
  }
  return least;
}

std::string gpu_name(int index) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) return properties.name;
  cudaGetLastError();
  return {};
}

}  // namespace megatron
