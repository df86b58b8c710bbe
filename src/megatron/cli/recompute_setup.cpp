#include "megatron/cli/recompute_setup.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "megatron/device/gpu_info.h"

namespace megatron {

double usable_memory(DeviceType device, int64_t ranks_here) {
  double bytes = 0, devices = 1;
  if (device == DeviceType::Cuda) {
    const GpuReport report = look_for_gpus();
    for (const GpuInfo& gpu : report.gpus) {
      const auto own = static_cast<double>(gpu.total_bytes);
      bytes = bytes == 0 ? own : std::min(bytes, own);
    }
    devices = static_cast<double>(std::max<size_t>(1, report.gpus.size()));
  } else {
    bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  const double ranks_a_device = std::ceil(static_cast<double>(ranks_here) / devices);
  return 0.9 * bytes / std::max(1.0, ranks_a_device);
}

std::optional<RecomputeChoice> settle_recompute(Config& config, const ParallelSizes& sizes, DType dtype,
                                                DeviceType device, double otherwise) {
  if (!chooses_recompute(config)) return {};
  const auto given = config.execution.recompute_memory_gib;
  return choose_recompute(config, sizes, dtype, given ? *given * (1 << 30) : otherwise,
                          speed_of(device, dtype));
}

}  // namespace megatron
