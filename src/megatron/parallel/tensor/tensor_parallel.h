#pragma once

#include "megatron/comm/process_group.h"

namespace megatron {

// Which communication of linear layers runs beside their GEMMs (tp_comm_overlap), in blocks of tokens
// where it must be finished for the GEMM, whole where it need not be.
struct TensorOverlap {
  bool on = false;                  // with sequence parallelism
  bool gather = true;               // blocks of the input while the one held is multiplied
  bool scatter = true;              // blocks of the sum while the next one is multiplied
  bool scatter_data = false;        // the same for the gradient of a gathered input
  bool gather_under_data = true;    // the input again, under the GEMM for its gradient
  bool reduce_under_weight = true;  // the sum of that gradient, under the GEMM for the weight's
  bool qkv = true, fc1 = true;      // in these two projections
};

// How the layers of a model are split over the ranks of a tensor-parallel group.
struct TensorParallel {
  ProcessGroup group = ProcessGroup::self("tp");
  bool sequence_parallel = false;  // between the parallel parts each rank holds its share of the tokens
  TensorOverlap overlap = {};
  ProcessGroup key_group = ProcessGroup::self("tp-keys");  // ranks that share one key and value head

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  bool splits_tokens() const { return sequence_parallel && size() > 1; }
};

}  // namespace megatron
