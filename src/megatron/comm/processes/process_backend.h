#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/comm/processes/process_world.h"

namespace megatron {

// The group of all ranks, as one of those of this process sees it. Tensors on a GPU pass through host memory.
ProcessGroup process_world_group(std::shared_ptr<ProcessWorld> world, int rank);

}  // namespace megatron
