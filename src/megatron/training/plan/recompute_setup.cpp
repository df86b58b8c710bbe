#include "megatron/training/plan/recompute_setup.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/device/gpu_info.h"
#include "megatron/device/runtime.h"
#include "megatron/device/system_memory.h"

namespace megatron {
namespace {

constexpr double kBytesPerGib = 1 << 30;

double usable_memory(DeviceType device, int64_t sharing) {
  double bytes = 0;
  if (device == DeviceType::Cuda) {
    bytes = static_cast<double>(min_gpu_memory());
    if (bytes == 0)
      throw ConfigError("--recompute-modules auto: no GPU is there to ask; give --recompute-memory-gib");
  } else {
    bytes = system_memory();
  }
  return 0.9 * bytes / static_cast<double>(sharing);
}

}  // namespace

int64_t ranks_on_a_device(DeviceType device, int64_t ranks, int64_t processes_here) {
  if (device != DeviceType::Cuda) return ranks * processes_here;
  const int64_t gpus = std::max(1, cuda_device_count());
  const int64_t sharing = gpus < processes_here ? ranks : ranks * processes_here;
  return (sharing + gpus - 1) / gpus;
}

std::optional<RecomputeChoice> settle_recompute(Config& config, const ParallelSizes& sizes, DType dtype,
                                                DeviceType device, int64_t sharing) {
  if (!chooses_recompute(config)) return {};
  const auto given = config.execution.recompute_memory_gib;
  const double limit = given ? *given * kBytesPerGib : usable_memory(device, sharing);
  return choose_recompute(config, sizes, dtype, limit, speed_of(device, dtype));
}

}  // namespace megatron
