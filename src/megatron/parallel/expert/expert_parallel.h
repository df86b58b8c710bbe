#pragma once

#include "megatron/comm/process_group.h"

namespace megatron {

// How the experts of a layer are spread: whole experts over `group`, the matrices of each expert over
// `tensor`.
struct ExpertParallel {
  ProcessGroup group = ProcessGroup::self("ep");
  ProcessGroup tensor = ProcessGroup::self("etp");

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
};

}  // namespace megatron
