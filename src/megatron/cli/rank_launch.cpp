#include "megatron/cli/rank_launch.h"

#include <algorithm>
#include <cstdlib>

#include "megatron/base/error.h"
#include "megatron/device/cpu_pool.h"

namespace megatron {
namespace {

Device device_of(const RunConfig& run, int rank) {
  const int gpus = run.device == DeviceChoice::cpu ? 0 : cuda_device_count();
  if (run.device == DeviceChoice::cuda && gpus == 0)
    throw ConfigError("--device cuda: no usable GPU is there; leave it out, or use --device cpu");
  return gpus > 0 ? Device{DeviceType::Cuda, static_cast<int8_t>(rank % gpus)} : kCpu;
}

}  // namespace

LaunchPlace launch_place() {
  return find_place([](const char* name) { return std::getenv(name); });
}

void run_on_ranks(const Config& config, const LaunchPlace& place,
                  const std::function<void(RankContext&, const ProcessGroup& world)>& fn) {
  const RunConfig& where = config.run;
  const auto ranks = static_cast<int>(where.ranks);
  const int threads = std::max(1, available_cores() / (ranks * place.processes_here));
  Launch launch({.ranks = ranks,
                 .comm = connection_from_name(names(where.comm)[static_cast<size_t>(where.comm)]),
                 .cuda = device_of(where, 0).is_cuda(),
                 .timeout = std::chrono::milliseconds(
                     static_cast<int64_t>(config.dist.distributed_timeout_minutes * 60e3)),
                 .place = place});
  launch.run([&](int rank, const ProcessGroup& world) {
    RankContext ctx(device_of(where, rank), threads, rank);
    world.attach(ctx);
    fn(ctx, world);
  });
}

}  // namespace megatron
