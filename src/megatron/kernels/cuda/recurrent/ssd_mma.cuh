#pragma once

#include "megatron/kernels/cuda/core/mma.cuh"
#include "megatron/kernels/cuda/recurrent/ssd.cuh"

// Mamba-2's SSD scan on tensor cores, for bf16. Inside chunks it runs in tiles of 64 tokens; states are
// carried along a sequence in registers. An mma of two bf16 inputs is exact. A computed operand enters it
// rounded to bf16 where the result is rounded to bf16 too, else as the sum of two bf16 numbers.
namespace megatron::cuda {

inline constexpr int kScanChannels = 64, kScanStates = 128, kScanTile = 64;
using ScanRows = MmaTile<bfloat, kScanTile, kScanChannels>;  // tokens × channels
using ScanStates = MmaTile<bfloat, kScanTile, kScanStates>;  // tokens or channels × states

// SsdTask with steps and sums by head, [heads, tokens], and factors made of them.
struct ScanTask : SsdTask<bfloat> {
  float* grown;     // e^sum: decay of the state before the chunk
  float* entering;  // Δ e^(total − sum): weight of the token in the state after the chunk

  explicit ScanTask(const SsdTask<bfloat>& task) : SsdTask(task) {}

  static size_t bytes(const SsdTask<bfloat>& task) {
    return 4 * task.token_bytes() + static_cast<size_t>(task.slots * task.heads) * sizeof(float);
  }
  void use(float* memory) {
    const int64_t count = sequences.tokens * heads;
    steps = memory;
    sums = steps + count;
    grown = sums + count;
    entering = grown + count;
    decays = entering + count;
  }
  __device__ const float* of_head(const float* values, int64_t head, int64_t t) const {
    return values + head * sequences.tokens + t;
  }
  __device__ const bfloat* x_rows(int64_t head, int64_t t) const {
    return xbc + t * stride + head * kScanChannels;
  }
  __device__ const bfloat* b_rows(int64_t group, int64_t t) const {
    return xbc + t * stride + heads * kScanChannels + group * kScanStates;
  }
  __device__ const bfloat* c_rows(int64_t group, int64_t t) const {
    return b_rows(group, t) + groups * kScanStates;
  }
};

// Rows of a matrix [tokens, heads · channels] beside the task's own.
struct ScanMatrix {
  const bfloat* data;
  int64_t stride;
  __device__ const bfloat* rows(int64_t head, int64_t t) const {
    return data + t * stride + head * kScanChannels;
  }
};

// Loads a state [channels, states] rounded to bf16 and, with Split, the rounding error.
template <bool Split>
__device__ __forceinline__ void fill_state(const ScanStates& high, const ScanStates& low,
                                           const float* state) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kScanChannels * kScanStates / 8; i += kMmaThreads) {
    const int row = i / (kScanStates / 8), chunk = i % (kScanStates / 8);
    const float4 first = *reinterpret_cast<const float4*>(state + i * 8),
                 second = *reinterpret_cast<const float4*>(state + i * 8 + 4);
    uint4 h, l;
    split(first, second, h, l);
    *reinterpret_cast<uint4*>(high.at(row, chunk)) = h;
    if constexpr (Split) *reinterpret_cast<uint4*>(low.at(row, chunk)) = l;
  }
}

// Steps, sums and decays.
void prepare_scan(const ScanTask& task, cudaStream_t stream);

// Carries states along sequences. Forward: states[slot] is the state before each chunk, from rows x and b.
// Reverse: the gradient of the state after it, from rows dy and c; then also `carried` [2, slots, heads],
// whose sum over the first is Σ before · after.
void carry_states(const ScanTask& task, const ScanMatrix& rows, float* states, float* carried, bool reverse,
                  cudaStream_t stream);

// The forward pass.
void ssd_on_tensor_cores(const KernelContext& ctx, const SsdTask<bfloat>& task, bfloat* y);

// Whether a task may go on tensor cores.
inline bool fits_scan_tiles(const SsdTask<bfloat>& task) {
  return task.channels == kScanChannels && task.states == kScanStates &&
         (task.chunk == 64 || task.chunk == 128 || task.chunk == 256) && task.stride % 8 == 0 &&
         aligned(task.xbc);
}

}  // namespace megatron::cuda
