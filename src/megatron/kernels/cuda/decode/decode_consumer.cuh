#pragma once

#include "megatron/kernels/cuda/decode/decode_task.cuh"

namespace megatron::cuda::decode {

// What the eight consumer warps of a block do in every phase: GEMMs of the weights that come by the ring,
// norms, and barriers of the whole grid.
struct Consumer {
  const DecodeTask& task;
  FixedShared& fixed;
  bfloat *x, *hidden, *gamma;  // [rows, K + kXPad], [rows, width], [width]
  float* partial;  // [2, slots, warps, rows · columns]: accumulators of tiles, of two flushes in turn
  Ring ring;
  uint32_t barriers = 0;  // of the grid that were passed
  int flushes = 0;

  __device__ static int thread() { return threadIdx.x; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }

  // All blocks have written what they have to; meanwhile, other threads than the first do `other`.
  template <class F>
  __device__ void grid_sync(F&& other) {
    ++barriers;
    consumers_sync();
    if (thread() == 0) {
      const uint32_t goal = barriers * gridDim.x;
      uint32_t arrived;
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(task.counters) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(task.counters) : "memory");
      } while (arrived < goal);
    } else if (warp() > 0) {
      other(thread() - 32, kConsumers - 32);
    }
    consumers_sync();
  }

  __device__ void prefetch_row(const bfloat* row, int n, int i, int threads) const {
    for (int at = i * 64; at < n; at += threads * 64) prefetch(row + at);
  }
  __device__ void load_gamma(const bfloat* weight, int i, int threads) const {
    for (int at = i * 8; at < task.width; at += threads * 8)
      *reinterpret_cast<uint4*>(gamma + at) = *reinterpret_cast<const uint4*>(weight + at);
  }

  // x · wᵀ for this block's tiles; done(row, column, value), or with SwiGLU done(row, column, gate, up).
  template <class Done>
  __device__ void multiply(const Matrix& m, Done&& done) {
    const int own = lane() / 4, at = lane() % 4;
    const bool valid = own < task.rows;
    const uint32_t x_row = shared_address(x) + own * (m.k + kXPad) * 2 + at * 16;
    constexpr int Each = kStageK / kChunk / kWarps;
    int slot = 0;
    float acc[Each][4] = {};  // apart, so that no mma waits for the one before it
    const auto stage = [&](int tile, int half, int k) {
      const int chunks = min(kStageK, m.k - k) / kChunk;
      ring.full_barrier().wait(ring.parity);
      const uint32_t w_row = ring.data() + own * kRowBytes + at * 16;
      uint4 w[Each], v[Each];
#pragma unroll
      for (int i = 0; i < Each; ++i) {
        const int chunk = warp() + i * kWarps;  // those beyond the last are not used
        w[i] = read_shared(true, w_row + chunk * kChunk * 2);
        v[i] = read_shared(valid, x_row + (k + chunk * kChunk) * 2);
      }
#pragma unroll
      for (int i = 0; i < Each; ++i)
        if (warp() + i * kWarps < chunks) {
          const uint32_t low[4] = {v[i].x, 0, v[i].y, 0}, high[4] = {v[i].z, 0, v[i].w, 0};
          mma<bfloat>(acc[i], low, w[i].x, w[i].y);
          mma<bfloat>(acc[i], high, w[i].z, w[i].w);
        }
      __syncwarp();
      if (lane() == 0) ring.empty_barrier().arrive();
      ring.advance();
      if (k + kStageK < m.k) return;
      if (valid)
        *reinterpret_cast<float2*>(partial_of(slot, warp()) + own * kColumns + 2 * at) = {
            (acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0]),
            (acc[0][1] + acc[1][1]) + (acc[2][1] + acc[3][1])};
      static_assert(Each == 4);
#pragma unroll
      for (int i = 0; i < Each; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
      if (thread() == 0) fixed.tiles[flushes & 1][slot] = tile;
      if (++slot == kSlots) {
        flush(m, slot, done);
        slot = 0;
      }
    };
    for_each_stage(m, stage, [&] {
      ring.full_barrier().wait(ring.parity);
      const int tile = fixed.claimed[ring.stage];
      if (tile >= m.tiles) {
        __syncwarp();
        if (lane() == 0) ring.empty_barrier().arrive();
        ring.advance();
      }
      return tile;
    });
    if (slot) flush(m, slot, done);
  }

  __device__ float* partial_of(int slot, int w) const {
    return partial + (((flushes & 1) * kSlots + slot) * kWarps + w) * task.rows * kColumns;
  }

  template <class Done>
  __device__ void flush(const Matrix& m, int slots, Done&& done) {
    consumers_sync();
    const auto sum_of = [&](int slot, int i) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += partial_of(slot, w)[i];
      return sum;
    };
    const int each = m.second ? 2 : 1, outputs = task.rows * kColumns;
    for (int i = thread(); i < slots / each * outputs; i += kConsumers) {
      const int slot = i / outputs, at = i - slot * outputs;
      const int row = at / kColumns,
                column = fixed.tiles[flushes & 1][slot * each] * kColumns + at % kColumns;
      done(row, column, sum_of(slot * each, at), m.second ? sum_of(slot * each + 1, at) : 0.f);
    }
    ++flushes;
  }

  // hidden += update, x = RMSNorm(hidden) · gamma, of sums as they are rounded.
  __device__ void norm(bool updates) {
    const int vectors = task.width / 8;
    for (int row = 0; row < task.rows; ++row) {
      float square = 0;
      for (int v = thread(); v < vectors; v += kConsumers) {
        uint4* place = reinterpret_cast<uint4*>(hidden + row * task.width) + v;
        Packed<bfloat, 8> value;
        value.put(__builtin_bit_cast(Vec<bfloat, 8>, *place));
        float sum[8];
        value.widened(sum);
        if (updates) {
          float added[8];
          Packed<bfloat, 8> update;
          update.put(__builtin_bit_cast(
              Vec<bfloat, 8>, __ldcg(reinterpret_cast<const uint4*>(task.update + row * task.width) + v)));
          update.widened(added);
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[j] += added[j];
          value.narrowed(sum);
          *place = __builtin_bit_cast(uint4, value.get());
          value.widened(sum);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) square += sum[j] * sum[j];
      }
      square = warp_sum(square);
      if (lane() == 0) fixed.sums[row][warp()] = square;
    }
    consumers_sync();
    for (int row = 0; row < task.rows; ++row) {
      float square = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) square += fixed.sums[row][w];
      const float rstd = 1.f / sqrtf(square / static_cast<float>(task.width) + task.epsilon);
      for (int v = thread(); v < vectors; v += kConsumers) {
        Packed<bfloat, 8> value, weight;
        value.put(__builtin_bit_cast(Vec<bfloat, 8>, reinterpret_cast<uint4*>(hidden + row * task.width)[v]));
        weight.put(__builtin_bit_cast(Vec<bfloat, 8>, reinterpret_cast<uint4*>(gamma)[v]));
        float y[8], g[8];
        value.widened(y);
        weight.widened(g);
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] = y[j] * rstd * (g[j] + task.gamma_offset);
        value.narrowed(y);
        reinterpret_cast<uint4*>(x + row * (task.width + kXPad))[v] = __builtin_bit_cast(uint4, value.get());
      }
    }
    consumers_sync();
  }

  // x = rows of n elements that another phase has left.
  __device__ void read_x(const bfloat* rows, int n) const {
    const int vectors = n / 8;
    for (int row = 0; row < task.rows; ++row)
      for (int v = thread(); v < vectors; v += kConsumers)
        reinterpret_cast<uint4*>(x + row * (n + kXPad))[v] =
            __ldcg(reinterpret_cast<const uint4*>(rows + static_cast<int64_t>(row) * n) + v);
    consumers_sync();
  }
};

}  // namespace megatron::cuda::decode
