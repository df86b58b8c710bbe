#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

struct GpuInfo {
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  int sm_count = 0;
  size_t total_bytes = 0, free_bytes = 0;
  std::vector<int> reaches;  // the GPUs whose memory it can read directly
  std::string fault;         // why it cannot be used; empty where it can
};

// What there is of CUDA on this machine. Never throws: what is wrong is in the report.
struct GpuReport {
  bool built_in = false;
  int driver_version = 0, runtime_version = 0;  // 13000 for 13.0; a driver of 0 is not there
  std::string fault;                            // why no GPU was found
  std::vector<GpuInfo> gpus;
};

// Implemented by device/cuda, or by device/none in a build without CUDA.
GpuReport look_for_gpus();
// The memory of the smallest of the first GPUs here, without starting any of them; 0 where there is none.
size_t min_gpu_memory(int64_t first = INT64_MAX);
std::string gpu_name(int index);  // as its driver says, without starting it; empty where there is none

}  // namespace megatron
