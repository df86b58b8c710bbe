#pragma once

#include "megatron/kernels/cuda/attention/decode_tile.cuh"
#include "megatron/kernels/cuda/core/sm90.cuh"
#include "megatron/kernels/decode_layers.h"

// The persistent kernel of a decoder's step: what it is given, its shared memory, and its stream of weights.
namespace megatron::cuda::decode {

inline constexpr int kMaxLayers = 96, kMaxRows = kMaxDecodeRows, kMaxSplits = 8, kMaxSplitKeys = 1024;
inline constexpr int kWarps = 8, kConsumers = kWarps * 32, kBlockThreads = kConsumers + 32;
inline constexpr int kColumns = 8;                 // of the output in a tile: rows of a weight
inline constexpr int kStageK = 1024, kChunk = 32;  // of K in a stage of the ring, and in one read of a warp
inline constexpr int kRowBytes =
    kStageK * 2 + 64;  // of a stage; reads of two rows at once meet different banks
inline constexpr int kStageBytes = kColumns * kRowBytes;
inline constexpr int kXPad = 32;   // elements behind a row of x, for the same reason
inline constexpr int kSlots = 16;  // tiles whose accumulators wait to be added up
inline constexpr int kPartial = 2 * kSlots * kWarps * kColumns;  // accumulators of a row of x
inline constexpr int kMinStages = 4, kMaxStages = 16;
inline constexpr size_t kCombinedBytes = size_t{80} << 10;  // of partial outputs that every block reads

struct LayerWeights {
  const bfloat *input_norm, *qkv, *projection, *mlp_norm, *fc1, *fc2;
  bfloat *keys, *values;
};

struct DecodeTask {
  const int64_t* ids;
  const bfloat *table, *final_norm, *head;
  bfloat* logits;
  const float *cos, *sin;
  const int64_t* slots;
  const int32_t *blocks, *key_lengths;
  int64_t blocks_stride, logits_stride;
  bfloat *qkv, *update, *active;  // [rows, …]: what one phase leaves for the next
  float* o;                       // [rows, heads, splits, head_dim], not yet divided by the sum
  float2* scores;                 // [rows, heads, splits]: the largest, and the sum of exponentials below it
  // Arrivals of the grid's barrier, blocks that are done, claims of the head and of fc1 of each layer; zero
  // between kernels.
  uint32_t* counters;
  int rows, layers, width, heads, kv_heads, group, inner, vocabulary, half, splits, block_size;
  int stages, x_bytes;
  int fc1_rounds, head_rounds;  // as Matrix::rounds
  float scale, epsilon, gamma_offset;
  bool interleaved;
  LayerWeights layer[kMaxLayers];
};

// A weight in tiles of eight rows. With `second`, a tile of that many rows further belongs to each: up's
// beside the gate's. Block b has tile b, the one a whole grid further, and so on, for so many rounds; of
// those behind them, blocks claim one whenever they have room for it, since memory does not serve all SMs
// alike.
struct Matrix {
  const bfloat* w;
  int tiles, k, second;
  int rounds;
  uint32_t* claimed;  // tiles of those behind the rounds
};

enum Phase { kQkv, kProjection, kFc1, kFc2, kPhases };

inline constexpr int kClaims = 2;                               // where counters of claims begin
inline constexpr int kNoClaims = 1 << 30, kClaimedRounds = 10;  // tiles of a block from which on claims pay

template <int D>
__device__ __forceinline__ Matrix matrix_of(const DecodeTask& task, int layer, int phase) {
  const LayerWeights& w = task.layer[layer];
  switch (phase) {
    case kQkv:
      return {w.qkv, (task.heads + 2 * task.kv_heads) * D / kColumns, task.width, 0, kNoClaims, nullptr};
    case kProjection:
      return {w.projection, task.width / kColumns, task.heads * D, 0, kNoClaims, nullptr};
    case kFc1:
      return {w.fc1,      task.inner / kColumns, task.width,
              task.inner, task.fc1_rounds,       task.counters + kClaims + 1 + layer};
    default:
      return {w.fc2, task.width / kColumns, task.inner, 0, kNoClaims, nullptr};
  }
}
__device__ __forceinline__ Matrix head_of(const DecodeTask& task) {
  return {task.head, task.vocabulary / kColumns, task.width, 0, task.head_rounds, task.counters + kClaims};
}

// Shared memory, in this order.
struct FixedShared {
  uint64_t full[kMaxStages], empty[kMaxStages];
  float sums[kMaxRows][kWarps];
  int32_t key_rows[kMaxSplitKeys];
  int32_t lengths[kMaxRows];
  int32_t claimed[kMaxStages];  // the tile that begins with a stage, where it was claimed
  int32_t tiles[2][kSlots];     // of slots, of two flushes in turn
};
template <int D>
struct AttentionShared {  // where x is otherwise
  float joined[kWarps][kTileHeads][D];
  float2 scores[kWarps][kTileHeads];
  bfloat q[kTileHeads][D], key[D], value[D];
  bfloat fused[(kTileHeads + 2) * D];  // the KV head's part of qkv, as it comes
};

struct Ring {
  uint32_t stages, full, empty;
  int count, stage = 0;
  uint32_t parity = 0;

  __device__ sm90::Barrier full_barrier() const { return {full + 8 * stage}; }
  __device__ sm90::Barrier empty_barrier() const { return {empty + 8 * stage}; }
  __device__ uint32_t data() const { return stages + stage * kStageBytes; }
  __device__ void advance() {
    if (++stage == count) stage = 0, parity ^= 1;
  }
};

// Calls f(tile, half, first element of K) for each stage of this block's tiles; claim() is the next tile once
// the rounds are over, m.tiles or more: none.
template <class F, class Claim>
__device__ __forceinline__ void for_each_stage(const Matrix& m, F&& f, Claim&& claim) {
  int round = 0;
  for (int tile = blockIdx.x; tile < m.tiles;
       tile = ++round < m.rounds ? tile + static_cast<int>(gridDim.x) : claim())
    for (int half = 0; half < (m.second ? 2 : 1); ++half)
      for (int k = 0; k < m.k; k += kStageK) f(tile, half, k);
}

__device__ __forceinline__ void bulk_load_once(uint32_t to, const void* from, int bytes, sm90::Barrier full,
                                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full.address), "l"(policy)
      : "memory");
}

// The producer: weights do not depend on activations, so it is ahead by the whole ring, over all phases. It
// claims tiles and tells the consumers which.
__device__ __forceinline__ void feed(const Matrix& m, Ring& ring, FixedShared& fixed, int lane,
                                     uint64_t policy) {
  bool begins = false;  // a tile that was claimed
  for_each_stage(
      m,
      [&](int tile, int half, int k) {
        const int bytes = min(kStageK, m.k - k) * 2;
        ring.empty_barrier().wait(ring.parity ^ 1);
        if (lane == 0) {
          if (begins) fixed.claimed[ring.stage] = tile;
          ring.full_barrier().arrive_expect_tx(kColumns * bytes);
        }
        begins = false;
        __syncwarp();
        if (lane < kColumns)
          bulk_load_once(ring.data() + lane * kRowBytes,
                         m.w + (static_cast<int64_t>(tile) * kColumns + half * m.second + lane) * m.k + k,
                         bytes, ring.full_barrier(), policy);
        ring.advance();
      },
      [&] {
        int tile = 0;
        if (lane == 0)
          tile = m.rounds * static_cast<int>(gridDim.x) + static_cast<int>(atomicAdd(m.claimed, 1u));
        tile = __shfl_sync(0xffffffffu, tile, 0);
        begins = true;
        if (tile >= m.tiles) {
          ring.empty_barrier().wait(ring.parity ^ 1);
          if (lane == 0) {
            fixed.claimed[ring.stage] = tile;
            ring.full_barrier().arrive();
          }
          __syncwarp();
          ring.advance();
        }
        return tile;
      });
}

// 16 bytes, or zeros. Predicated, so that no branch stands between loads.
__device__ __forceinline__ uint4 read_shared(bool valid, uint32_t address) {
  uint4 v{};
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %5, 0;"
      "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "r"(address), "r"(static_cast<int>(valid)));
  return v;
}

__device__ __forceinline__ void consumers_sync() { sm90::named_barrier_sync<kConsumers>(1); }

}  // namespace megatron::cuda::decode
