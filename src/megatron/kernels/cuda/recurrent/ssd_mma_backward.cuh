#pragma once

#include "megatron/kernels/cuda/recurrent/ssd_mma.cuh"

namespace megatron::cuda {

struct ScanGrads {
  ScanMatrix dy;
  bfloat *dxbc, *ddt;
  float* after;         // [slots, heads, channels, states]: the gradient of the state after a chunk
  float* carried;       // [2, slots, heads]: Σ before · after, of each half of the states
  bfloat* reached;      // [slots, groups, chunk, chunk]: the gradient of c_i · b_j
  float* out_of_rows;   // [tiles, heads, tokens]: what passes inside a chunk, times its gradient, by the tile
  float* into_columns;  // it comes from; and by the tile it goes to, over Δ
  float *read, *left, *skip;  // [heads, tokens]: from the state before, into the one after over Δ, x · dy
  float* partials;            // [3, slots, heads]: a_log, d, dt_bias

  static size_t bytes(const ScanTask& task) {
    const int64_t tiles = task.chunk / kScanTile, tokens = task.sequences.tokens * task.heads;
    return static_cast<size_t>(task.state_elements() + 5 * task.slots * task.heads +
                               (2 * tiles + 3) * tokens) *
               sizeof(float) +
           static_cast<size_t>(task.slots * task.groups * task.chunk * task.chunk) * sizeof(bfloat);
  }
  void use(const ScanTask& task, float* memory) {
    const int64_t tiles = task.chunk / kScanTile, tokens = task.sequences.tokens * task.heads;
    after = memory;
    reached = reinterpret_cast<bfloat*>(after + task.state_elements());
    out_of_rows = reinterpret_cast<float*>(reached + task.slots * task.groups * task.chunk * task.chunk);
    into_columns = out_of_rows + tiles * tokens;
    read = into_columns + tiles * tokens;
    left = read + tokens;
    skip = left + tokens;
    carried = skip + tokens;
    partials = carried + 2 * task.slots * task.heads;
  }
};

inline bool fits_scan_rows(const Tensor& rows) { return rows.stride(0) % 8 == 0 && aligned(rows.raw()); }

// All but the sums of `partials` over chunks.
void scan_backward(const ScanTask& task, const ScanGrads& grads, cudaStream_t stream);

}  // namespace megatron::cuda
