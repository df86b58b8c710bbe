#pragma once

#include "megatron/kernels/cuda/recurrent/delta_mma.cuh"

// Backward through the chunks. With P = passed, z = Tᵀ (Pᵀ do + e^(G_L − G) k dS) is the gradient of β (v −
// e^G k S), and
// dv = β z, dβ = z · δ / β, dS ← e^(G_L) dS + qᵀ e^G do − kᵀ e^G β z,
// where q, k and do are rows. A gate scales all that passes it: what comes out at token i has passed every
// gate up to i, what goes in at j has not passed those up to j. So the gradient of a log-decay is the sum,
// from the end of the chunk, of the former less the latter. What passes between two tokens is in both with
// the same value, and cancels exactly.
namespace megatron::cuda {

// A matrix of 64 × 128 as mma fragments, by step of 16 columns, 16 rows and lane. The four bf16x2 of a lane
// are an A fragment of 16 rows, and two B fragments of eight columns.
inline constexpr int kWideFragmentSize = 8 * 4 * 32;
__device__ __forceinline__ int wide_fragment_index(int step, int rows) {
  return (step * 4 + rows) * 32 + static_cast<int>(threadIdx.x) % 32;
}

struct DeltaChunkGrads {
  const bfloat* d_o;
  int64_t d_o_stride;
  bfloat *dqkv, *db, *da;
  uint4 *z, *z_rest;   // [slots, value heads, kWideFragmentSize]: z in two parts
  float* after;        // [slots, value heads, keys, values]: of the state after
  float* z_dot_v_new;  // [value heads, tokens]: z · δ
  float* passed;    // [value heads, tokens]: what comes out at a token less what goes in, times its gradient
  float* carried;   // [slots, value heads]: the state after a chunk times its gradient
  float* partials;  // [2, slots, value heads]: of dt_bias and a_log

  static size_t bytes(const DeltaChunks& task) {
    const int64_t states = task.slots * task.value_heads;
    return static_cast<size_t>(2 * states * kWideFragmentSize) * sizeof(uint4) +
           static_cast<size_t>(states * (kDeltaChannels * kDeltaChannels + 3) +
                               2 * task.value_heads * task.sequences.tokens) *
               sizeof(float);
  }
  void use(const DeltaChunks& task, void* memory) {
    const int64_t states = task.slots * task.value_heads, tokens = task.value_heads * task.sequences.tokens;
    z = static_cast<uint4*>(memory);
    z_rest = z + states * kWideFragmentSize;
    after = reinterpret_cast<float*>(z_rest + states * kWideFragmentSize);
    z_dot_v_new = after + states * kDeltaChannels * kDeltaChannels;
    passed = z_dot_v_new + tokens;
    carried = passed + tokens;
    partials = carried + states;
  }
  __device__ const bfloat* d_o_rows(int64_t head, int64_t t) const {
    return d_o + t * d_o_stride + head * kDeltaChannels;
  }
};

// The gradients of q and k, and `z_dot_v_new`, `passed` and `carried`.
size_t delta_bwd_qk_smem();  // bytes of shared memory that it takes, the maximum of these kernels
void delta_bwd_qk(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream);

// All but the reduction of `partials` over chunks.
void delta_chunks_backward(const DeltaChunks& task, const DeltaChunkGrads& grads, cudaStream_t stream);

}  // namespace megatron::cuda
