#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/comm/rendezvous/environment.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/device/gpu_info.h"

// What `megatron doctor` looks at. What is found is kept apart from what is made of it, so that tests can
// show it machines that are not here.
namespace megatron {

enum class Grade : uint8_t { Ok, Note, Wrong };  // Note: works, but something is left out or slow

struct Finding {
  Grade grade = Grade::Ok;
  std::string subject, text, advice;  // advice: what to do about it; "" where nothing is to be done
};
struct CheckList {
  std::string title;
  std::vector<Finding> findings;
};

struct DiskPlace {
  std::string what, path;
  std::optional<uint64_t> free_bytes;  // none: cannot be written to, or is not there
};

struct Machine {
  std::string system, cpu;
  int cores = 0, usable_cores = 0;
  double cpu_quota = 0;  // cores that the control group grants; 0: no limit
  std::vector<std::string> features;
  uint64_t memory = 0, available_memory = 0;
  std::optional<uint64_t> memory_limit;  // of the control group
  std::vector<DiskPlace> disks;
  uint64_t open_files = 0, locked_bytes = 0;  // limits; ~0: none
  std::optional<uint64_t> shared_memory;      // free in /dev/shm
};

Machine look_at_machine();
std::vector<std::string> cpu_features(const std::string& cpuinfo);  // of those that matter to us

CheckList build_section();
CheckList machine_section(const Machine& machine);
CheckList gpu_section(const GpuReport& report);
CheckList rank_section(const Environment& environment);
// The configuration's shapes: kernels, and memory against what there is. `device_memory`: of a GPU or the
// host.
CheckList shape_section(const Resolved& resolved, const GpuReport& report, const Machine& machine);
// Small trainings with known results on the CPU, on ranks that are threads and on every GPU.
CheckList numeric_section(const GpuReport& report);

}  // namespace megatron
