#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron::autotune {

// A device as its data sheet describes it: dense rates, one direction of each link.
struct GpuSpec {
  std::string name;
  double tflops16 = 0;      // bf16 and fp16, fp32 accumulation
  double tflops8 = 0;       // fp8; 0 where there is none
  double tflops4 = 0;       // fp4; 0 where there is none
  double memory_gib = 0;    // what a process can allocate
  double memory_tbs = 0;    // TB/s
  double nvlink_gbs = 0;    // GB/s of one GPU into the NVLink domain, or of PCIe where there is none
  double nic_gbs = 0;       // GB/s of network that one GPU has as a rule
  int sms = 0;              // units that a GEMM's tiles are dealt to
  double sustained = 1;     // share of GEMM rates that power allows, against H100's share
  bool calibrated = false;  // constants were fitted on runs of its kind
  int nvlink_domain = 8;    // GPUs that reach each other through NVLink as a rule
  double host_gbs = 50;     // GB/s between the GPU and host memory, one direction
};

// Every device that is known by name.
std::span<const GpuSpec> gpu_specs();

// The device of that name, in any case; a ConfigError names the nearest ones.
const GpuSpec& gpu_spec(std::string_view name);

// Whether what a driver calls a device, as in "NVIDIA GeForce RTX 4090", is of the kind: RTX4090. Of a kind's
// name, what stands in front of the first "-" counts.
bool is_of_kind(std::string_view device, std::string_view kind);

}  // namespace megatron::autotune
