#pragma once

#include "megatron/comm/process_group.h"

namespace megatron {

// How the tokens of each sequence are split over the ranks of a context-parallel group.
struct ContextParallel {
  ProcessGroup group = ProcessGroup::self("cp");

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

}  // namespace megatron
