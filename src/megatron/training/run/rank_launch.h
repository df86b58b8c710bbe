#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"
#include "megatron/base/log.h"
#include "megatron/comm/launch.h"
#include "megatron/config/config.h"

namespace megatron {

LaunchPlace
launch_place();  // as the environment tells: alone, or one of what mpirun, torchrun or srun started

DeviceType device_type(const Config& config);  // where the ranks of this process compute

// Runs a function on this process's ranks: as many threads as --ranks says, on --device, connected by --comm.
// The cores are shared out among the ranks of the machine. Where one fails, what the ranks of this process
// did last is kept where the configuration says.
void run_on_ranks(const Config& config, const LaunchPlace& place, const Log& log,
                  const std::function<void(RankContext&, const ProcessGroup& world)>& fn);

// How the processes and threads of a run are connected.
LaunchOptions launch_options(const Config& config, const LaunchPlace& place);

// What a rank computes with that outlives a generation: handles and plans of libraries, which take a while to
// make, and memory that nobody uses.
struct KeptDevice {
  std::shared_ptr<DeviceRuntime> runtime;  // null: there was none yet, or it has failed
  std::shared_ptr<Allocator> allocator;
};

// Does so on a launch whose processes may change, for one generation of them. `failed` becomes the moment
// when this process first knew of a fault. `kept`: of each rank here, empty where nothing is kept.
void run_generation(Launch& launch, const Config& config, const LaunchPlace& place, const Log& log,
                    const std::function<void(RankContext&, const ProcessGroup& world)>& fn,
                    std::chrono::steady_clock::time_point& failed, std::span<KeptDevice> kept = {});

}  // namespace megatron
