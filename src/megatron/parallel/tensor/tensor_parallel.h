#pragma once

#include "megatron/comm/process_group.h"

namespace megatron {

// How the layers of a model are split over the ranks of a tensor-parallel group.
struct TensorParallel {
  ProcessGroup group = ProcessGroup::self("tp");
  bool sequence_parallel = false;  // between the parallel parts each rank holds its share of the tokens

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  bool splits_tokens() const { return sequence_parallel && size() > 1; }
};

}  // namespace megatron
