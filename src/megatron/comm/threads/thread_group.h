#pragma once

#include "megatron/comm/process_group.h"
#include "megatron/comm/threads/thread_world.h"

namespace megatron {

// The group of all ranks of a world, as one of them sees it.
ProcessGroup thread_group(std::shared_ptr<ThreadWorld> world, int rank);

}  // namespace megatron
