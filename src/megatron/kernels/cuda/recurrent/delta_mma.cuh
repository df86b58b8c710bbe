#pragma once

#include "megatron/kernels/cuda/core/mma.cuh"
#include "megatron/kernels/cuda/recurrent/delta_rule.cuh"

// The gated delta rule on tensor cores, for bf16, in chunks of 64 tokens. Inside a chunk, with G the
// cumulative log-decay (g_cumsum) and S the state before it, the new values δ (v_new) solve a triangular
// system:
// δ = T β (v − e^G k S), T = (1 + A)⁻¹, A_ij = β_i e^(G_i − G_j) k_i · k_j for j < i.
// T is the same for all value channels: it is made for all chunks at once, then states are carried along
// sequences. Inputs are exact in bf16 (lengths of q and k are factors of rows). A computed operand whose
// result is carried on enters mma as the sum of two bf16 numbers.
namespace megatron::cuda {

inline constexpr int kDeltaChannels = 128, kDeltaChunk = 64, kDeltaColumns = 64;
using DeltaRows = MmaTile<bfloat, kDeltaChunk, kDeltaChannels>;     // tokens × key or value channels
using DeltaState = MmaTile<bfloat, kDeltaChannels, kDeltaColumns>;  // key channels × a half of the values
using DeltaPart = MmaTile<bfloat, kDeltaChunk, kDeltaColumns>;      // tokens × a half of the values

// A matrix of 64 × 64 as A fragments of mma, by warp, step of 16 columns and lane.
inline constexpr int kFragmentSize = 4 * 4 * 32;
__device__ __forceinline__ int fragment_index(int step) {
  return (static_cast<int>(threadIdx.x) / 32 * 4 + step) * 32 + static_cast<int>(threadIdx.x) % 32;
}

// DeltaTask with decays and beta by head.
struct DeltaChunks : DeltaTask<bfloat> {
  float *g_cumsum, *head_beta;    // [value heads, tokens]: G and β
  float *q_scale, *k_scale;       // [key heads, tokens]: of the unit vectors; q also scaled
  uint4 *inverse, *inverse_rest;  // [slots, value heads, kFragmentSize]: T β in two parts
  uint4* passed;                  // likewise: e^(G_i − G_j) q_i · k_j for j ≤ i, rounded
  // For backward, transposed and in two parts: T and `passed`.
  uint4 *inverse_back, *inverse_back_rest, *passed_back, *passed_back_rest;

  explicit DeltaChunks(const DeltaTask<bfloat>& task) : DeltaTask(task) {}

  int64_t matrices() const { return slots * value_heads * kFragmentSize; }
  size_t bytes(bool back) const {
    return static_cast<size_t>((back ? 6 : 3) * matrices()) * sizeof(uint4) +
           static_cast<size_t>(2 * sequences.tokens * (value_heads + key_heads)) * sizeof(float);
  }
  void use_chunks(void* memory, bool back) {
    inverse = static_cast<uint4*>(memory);
    inverse_rest = inverse + matrices();
    passed = inverse_rest + matrices();  // not made for backward
    passed_back = passed;
    passed_back_rest = passed_back + matrices();
    inverse_back = passed_back_rest + matrices();
    inverse_back_rest = inverse_back + matrices();
    g_cumsum = reinterpret_cast<float*>(inverse + (back ? 6 : 3) * matrices());
    head_beta = g_cumsum + sequences.tokens * value_heads;
    q_scale = head_beta + sequences.tokens * value_heads;
    k_scale = q_scale + sequences.tokens * key_heads;
  }
  __device__ const bfloat* q_rows(int64_t key_head, int64_t t) const {
    return qkv + t * stride + key_head * kDeltaChannels;
  }
  __device__ const bfloat* k_rows(int64_t key_head, int64_t t) const {
    return q_rows(key_heads + key_head, t);
  }
  __device__ const bfloat* v_rows(int64_t head, int64_t t) const { return q_rows(2 * key_heads + head, t); }
  __device__ int64_t matrix_at(int64_t slot, int64_t head) const {
    return (slot * value_heads + head) * kFragmentSize;
  }
};

// acc += A (one matrix of 64 × 64, its lower or upper triangle) · B
template <bool Upper>
__device__ __forceinline__ void add_triangle(float (&acc)[kDeltaColumns / 8][4], const uint4 (&a_frag)[4],
                                             const DeltaPart& b_tile) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 0; step < 4; ++step)
    if (Upper ? step >= warp : step <= warp) {
      const uint32_t a[4] = {a_frag[step].x, a_frag[step].y, a_frag[step].z, a_frag[step].w};
#pragma unroll
      for (int n = 0; n < kDeltaColumns / 16; ++n) {
        uint32_t b[4];
        b_tile.load_b_trans(b, step * 16, 2 * n);
        mma<bfloat>(acc[2 * n], a, b[0], b[1]);
        mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
      }
    }
}

// acc += rows of A · (high + low), over key channels. With `also`, other += its rows · high.
template <bool Also>
__device__ __forceinline__ void add_over_keys(float (&acc)[kDeltaColumns / 8][4], const DeltaRows& a_tile,
                                              const DeltaState& high, const DeltaState& low,
                                              float (&other)[kDeltaColumns / 8][4], const DeltaRows& also) {
  const int row0 = static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int step = 0; step < kDeltaChannels / 16; ++step) {
    uint32_t a[4], c[4];
    a_tile.load_a(a, row0, step);
    if constexpr (Also) also.load_a(c, row0, step);
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 16; ++n) {
      uint32_t b[4];
      high.load_b_trans(b, step * 16, 2 * n);
      mma<bfloat>(acc[2 * n], a, b[0], b[1]);
      mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
      if constexpr (Also) {
        mma<bfloat>(other[2 * n], c, b[0], b[1]);
        mma<bfloat>(other[2 * n + 1], c, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 16; ++n) {
      uint32_t b[4];
      low.load_b_trans(b, step * 16, 2 * n);
      mma<bfloat>(acc[2 * n], a, b[0], b[1]);
      mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Loads the A fragments of a 64 × 64 matrix from device memory.
__device__ __forceinline__ void load_fragment(uint4 (&fragment)[4], const uint4* from) {
#pragma unroll
  for (int step = 0; step < 4; ++step) fragment[step] = from[fragment_index(step)];
}

// Writes a warp's accumulators to its rows of a tile in two parts, times a factor for each of a lane's rows.
__device__ __forceinline__ void write_split(const DeltaPart& high, const DeltaPart& low,
                                            const float (&acc)[kDeltaColumns / 8][4],
                                            const float (&factor)[2]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      split(factor[h] * acc[n][2 * h], factor[h] * acc[n][2 * h + 1],
            *reinterpret_cast<uint32_t*>(high.at(row + 8 * h, n) + lane % 4 * 2),
            *reinterpret_cast<uint32_t*>(low.at(row + 8 * h, n) + lane % 4 * 2));
}

// Writes a state of 128 × 64 in two parts, 32 rows a warp.
__device__ __forceinline__ void write_state(const DeltaState& high, const DeltaState& low,
                                            const float (&state)[2][kDeltaColumns / 8][4]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 32 + lane / 4;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        split(state[m][n][2 * h], state[m][n][2 * h + 1],
              *reinterpret_cast<uint32_t*>(high.at(row + m * 16 + 8 * h, n) + lane % 4 * 2),
              *reinterpret_cast<uint32_t*>(low.at(row + m * 16 + 8 * h, n) + lane % 4 * 2));
}
// Writes the state to device memory, from `to` on.
__device__ __forceinline__ void save_state(float* to, const float (&state)[2][kDeltaColumns / 8][4]) {
  const int lane = threadIdx.x % 32;
  to += (threadIdx.x / 32 * 32 + lane / 4) * kDeltaChannels + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float2*>(to + (m * 16 + h * 8) * kDeltaChannels + n * 8) = {state[m][n][2 * h],
                                                                                      state[m][n][2 * h + 1]};
}
__device__ __forceinline__ void scale_state(float (&state)[2][kDeltaColumns / 8][4], float factor) {
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) state[m][n][i] *= factor;
}

// state += keysᵀ · (high + low), over the tokens of a chunk.
__device__ __forceinline__ void add_over_tokens(float (&state)[2][kDeltaColumns / 8][4],
                                                const DeltaRows& keys, const DeltaPart& high,
                                                const DeltaPart& low) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 0; step < kDeltaChunk / 16; ++step) {
    uint32_t a[2][4];
    keys.load_a_trans(a[0], step * 16, warp * 4);
    keys.load_a_trans(a[1], step * 16, warp * 4 + 2);
#pragma unroll
    for (int n = 0; n < kDeltaColumns / 16; ++n)
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        uint32_t b[4];
        (which ? low : high).load_b_trans(b, step * 16, 2 * n);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<bfloat>(state[m][2 * n], a[m], b[0], b[1]);
          mma<bfloat>(state[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
  }
}

// The tokens of one sequence, cut into chunks, of which the last may be shorter.
struct DeltaSpan {
  int64_t begin, end;

  __device__ int chunks() const { return static_cast<int>((end - begin + kDeltaChunk - 1) / kDeltaChunk); }
  __device__ int64_t begin_of(int chunk) const { return begin + int64_t{chunk} * kDeltaChunk; }
  __device__ int length_of(int chunk) const {
    return static_cast<int>(min(int64_t{kDeltaChunk}, end - begin_of(chunk)));
  }
};

// Issues cp.async of a chunk's keys, g_cumsum, beta and scales into the chunk's half of a carry kernel's
// shared memory.
template <class Memory>
__device__ __forceinline__ void fetch_keys(Memory& memory, const DeltaChunks& task, const DeltaSpan& seq,
                                           int64_t head, int64_t key_head, int chunk) {
  const int64_t tokens = task.sequences.tokens, t = seq.begin_of(chunk);
  const int length = seq.length_of(chunk), buffer = chunk & 1;
  DeltaRows{memory.k[buffer]}.fill_rows(task.k_rows(key_head, t), task.stride, length);
  const int i = threadIdx.x % kDeltaChunk, from = min(i, length - 1);
  if (threadIdx.x < kDeltaChunk) {
    cp_async_word(&memory.g_cumsum[buffer][i], task.g_cumsum + head * tokens + t + from, true);
    if constexpr (requires { memory.beta; })
      cp_async_word(&memory.beta[buffer][i], task.head_beta + head * tokens + t + from, true);
  } else {
    cp_async_word(&memory.k_scale[buffer][i], task.k_scale + key_head * tokens + t + from, true);
    cp_async_word(&memory.q_scale[buffer][i], task.q_scale + key_head * tokens + t + from, true);
  }
}

// Gates, lengths and triangular systems of all chunks; with `transposed` also what backward needs.
void make_delta_systems(const DeltaChunks& task, bool transposed, cudaStream_t stream);

void delta_rule_on_tensor_cores(const KernelContext& ctx, const DeltaTask<bfloat>& task, bfloat* o);

// Whether a task may go on tensor cores.
inline bool fits_delta_tiles(const DeltaTask<bfloat>& task) {
  return task.keys == kDeltaChannels && task.values == kDeltaChannels && task.chunk == kDeltaChunk &&
         task.stride % 8 == 0 && aligned(task.qkv);
}

}  // namespace megatron::cuda
