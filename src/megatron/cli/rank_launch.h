#pragma once

#include <functional>

#include "megatron/autograd/rank_context.h"
#include "megatron/comm/launch.h"
#include "megatron/config/config.h"

namespace megatron {

LaunchPlace
launch_place();  // as the environment tells: alone, or one of what mpirun, torchrun or srun started

// Runs a function on this process's ranks: as many threads as --ranks says, on --device, connected by --comm.
// The cores are shared out among the ranks of the machine.
void run_on_ranks(const Config& config, const LaunchPlace& place,
                  const std::function<void(RankContext&, const ProcessGroup& world)>& fn);

}  // namespace megatron
