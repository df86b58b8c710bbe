#pragma once

#include "megatron/kernels/cuda/recurrent/ssd_mma.cuh"

// The outputs of 64 tokens of a chunk, for all heads of a group (mma.sync m16n8k16).
// Math: forward y_i = Σ_{j ≤ i} (c_i · b_j) Δ_j e^(s_i − s_j) x_j + e^(s_i) c_i · S + d x_i, with s the
// cumulative sums. Backward, with the roles of b and c exchanged, dx_i of dy at later tokens and of the
// gradient of the state after the chunk.
// Grid: (slots · tiles of 64 tokens, groups); blocks that read the same states are neighbours. c · bᵀ of the
// tile stays in registers, since all heads of a group share it.
// Shared memory: ScanTileMemory: own rows of c (or b), a state in bf16 (backward also its rounding error),
// rows x (or dy) of the chunk, sums and steps.
// Barriers: __syncthreads around each fill by cp.async; one head at a time.
namespace megatron::cuda {

struct ScanTileOutput {
  bfloat* data;  // y [tokens, heads · channels]; backward dxbc
  float* left;   // [heads, tokens], backward: Σ x · (gradient of Δ x through the state after the chunk)
};

template <bool Backward, int Tiles>
struct ScanTileMemory {
  static constexpr int kStates = Backward ? 3 : 2, kRows = Tiles + Backward;
  bfloat states[kStates][ScanStates::kElements];  // own rows, a state, its rounding error
  bfloat rows[kRows][ScanRows::kElements];        // x or dy; backward also the own x
  float sums[Tiles * kScanTile], steps[Tiles * kScanTile];
};

template <bool Backward, int Tiles>
__global__ void __launch_bounds__(kMmaThreads, Tiles < 4 ? 3 : 2)
    scan_tile_kernel(const __grid_constant__ ScanTask task, ScanMatrix other, const float* states,
                     ScanTileOutput out) {
  extern __shared__ __align__(128) char raw_memory[];
  auto& memory = *reinterpret_cast<ScanTileMemory<Backward, Tiles>*>(raw_memory);
  const int64_t slot = blockIdx.x / Tiles, group = blockIdx.y;
  const ChunkSpan span = task.sequences.chunk_span(slot, task.chunk);
  const int length = static_cast<int>(span.end - span.begin);
  const int tile = blockIdx.x % Tiles, row0 = tile * kScanTile, lane = threadIdx.x % 32,
            warp = threadIdx.x / 32;
  if (row0 >= length) return;
  auto used = [&](int t) { return Backward ? t >= tile && t * kScanTile < length : t <= tile; };
  auto count_of = [&](int t) { return min(kScanTile, length - t * kScanTile); };
  const ScanStates own{memory.states[0]}, state{memory.states[1]}, rest{memory.states[Backward ? 2 : 1]};

  float cb[Tiles][kScanTile / 8][4];
  own.fill_rows((Backward ? task.b_rows(group, span.begin + row0) : task.c_rows(group, span.begin + row0)),
                task.stride, count_of(tile));
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
    if (used(t)) {
      const int64_t from = span.begin + t * kScanTile;
      __syncthreads();
      state.fill_rows(Backward ? task.c_rows(group, from) : task.b_rows(group, from), task.stride,
                      count_of(t));
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      warp_gemm_nt<bfloat, kScanStates, kScanTile>(cb[t], own, warp * 16, state);
    }

  const int row = row0 + warp * 16 + lane / 4;  // and the eighth after it
  for (int64_t head = group * task.share; head < (group + 1) * task.share; ++head) {
    __syncthreads();
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
      if (used(t))
        ScanRows{memory.rows[t]}.fill_rows(other.rows(head, span.begin + t * kScanTile), other.stride,
                                           count_of(t));
    if constexpr (Backward)
      ScanRows{memory.rows[Tiles]}.fill_rows(task.x_rows(head, span.begin + row0), task.stride,
                                             count_of(tile));
    const float *sums = task.of_head(task.sums, head, span.begin),
                *steps = task.of_head(task.steps, head, span.begin);
    for (int i = threadIdx.x; i < Tiles * kScanTile; i += kMmaThreads) {
      cp_async_word(&memory.sums[i], sums + min(i, length - 1), true);
      cp_async_word(&memory.steps[i], steps + min(i, length - 1), true);
    }
    cp_async_commit();
    fill_state<Backward>(state, rest, states + task.state_at(slot, head));
    cp_async_wait<0>();
    __syncthreads();

    float acc[kScanChannels / 8][4];
    warp_gemm_nt<bfloat, kScanStates, kScanChannels>(acc, own, warp * 16, state);
    if constexpr (Backward) warp_gemm_nt_add<bfloat, kScanStates, kScanChannels>(acc, own, warp * 16, rest);
    const float sum[2] = {memory.sums[row], memory.sums[row + 8]};
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      factor[h] = exp2_fast((Backward ? memory.sums[length - 1] - sum[h] : sum[h]) * kLog2e);
#pragma unroll
    for (int n = 0; n < kScanChannels / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= factor[i / 2];
    // Elements of tile `which` at the positions of this lane's accumulators.
    auto pair_at = [&](int which, int h, int n) {
      const ScanRows from{memory.rows[which]};
      return unpack(*reinterpret_cast<const uint32_t*>(from.at(row - row0 + 8 * h, n) + lane % 4 * 2));
    };
    if constexpr (Backward) {
      float along[2] = {};
#pragma unroll
      for (int n = 0; n < kScanChannels / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 x = pair_at(Tiles, h, n);
          along[h] += x.x * acc[n][2 * h] + x.y * acc[n][2 * h + 1];
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        along[h] += __shfl_xor_sync(0xffffffffu, along[h], 1);
        along[h] += __shfl_xor_sync(0xffffffffu, along[h], 2);
        if (lane % 4 == 0 && row + 8 * h < length)
          out.left[head * task.sequences.tokens + span.begin + row + 8 * h] = along[h];
      }
    }
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
      if (used(t)) {
        const ScanRows from{memory.rows[t]};
#pragma unroll
        for (int step = 0; step < kScanTile / 16; ++step) {
          if (t == tile && (Backward ? step < warp : step > warp)) continue;
          uint32_t a[4];
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            const int n = 2 * step + part, column = t * kScanTile + n * 8 + lane % 4 * 2;
            const float2 there = *reinterpret_cast<const float2*>(&memory.sums[column]);
            float2 weight = {1, 1};
            if constexpr (!Backward) weight = *reinterpret_cast<const float2*>(&memory.steps[column]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              auto passes = [&](int to) { return Backward ? to >= row + 8 * h : to <= row + 8 * h; };
              const float sign = Backward ? -kLog2e : kLog2e;
              const float first = passes(column) ? exp2_fast((sum[h] - there.x) * sign) : 0.f,
                          second = passes(column + 1) ? exp2_fast((sum[h] - there.y) * sign) : 0.f;
              a[2 * part + h] = narrow_pair<bfloat>(cb[t][n][2 * h] * weight.x * first,
                                                    cb[t][n][2 * h + 1] * weight.y * second);
            }
          }
#pragma unroll
          for (int n = 0; n < kScanChannels / 16; ++n) {
            uint32_t b[4];
            from.load_b_trans(b, step * 16, 2 * n);
            mma<bfloat>(acc[2 * n], a, b[0], b[1]);
            mma<bfloat>(acc[2 * n + 1], a, b[2], b[3]);
          }
        }
      }
    const float skip = task.d[head];
    const int64_t width =
        task.heads * kScanChannels + (Backward ? 2 * task.groups * int64_t{kScanStates} : int64_t{0});
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (row + 8 * h < length) {
        const float scale = Backward ? memory.steps[row + 8 * h] : 1.f;
        bfloat* to = out.data + (span.begin + row + 8 * h) * width + head * kScanChannels + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kScanChannels / 8; ++n) {
          const float2 same = pair_at(tile, h, n);
          *reinterpret_cast<uint32_t*>(to + n * 8) = narrow_pair<bfloat>(
              scale * acc[n][2 * h] + skip * same.x, scale * acc[n][2 * h + 1] + skip * same.y);
        }
      }
  }
}

template <bool Backward>
void launch_scan_tiles(const ScanTask& task, const ScanMatrix& other, const float* states,
                       const ScanTileOutput& out, cudaStream_t stream) {
  auto launch = [&]<int Tiles>(std::integral_constant<int, Tiles>) {
    constexpr size_t bytes = sizeof(ScanTileMemory<Backward, Tiles>);
    auto kernel = scan_tile_kernel<Backward, Tiles>;
    allow_shared_memory(kernel, bytes);
    dim3 grid(static_cast<unsigned>(task.slots * Tiles), static_cast<unsigned>(task.groups));
    kernel<<<grid, kMmaThreads, bytes, stream>>>(task, other, states, out);
    check_launch("ssd");
  };
  if (task.chunk == 64) return launch(std::integral_constant<int, 1>{});
  if (task.chunk == 128) return launch(std::integral_constant<int, 2>{});
  launch(std::integral_constant<int, 4>{});
}

}  // namespace megatron::cuda
