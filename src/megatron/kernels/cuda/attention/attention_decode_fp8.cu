#include "megatron/kernels/cuda/attention/attention_decode.cuh"

namespace megatron::cuda {
namespace {

constexpr int kWarps = 4, kBlockThreads = kWarps * 32;

// Two values of e4m3, byte `first` of a and byte `second` of b (4–7: of b), in a pair of T. Exact.
template <class T>
__device__ __forceinline__ uint32_t widen_pair(uint32_t a, uint32_t b, uint32_t bytes);
template <>
__device__ __forceinline__ uint32_t widen_pair<bfloat>(uint32_t a, uint32_t b, uint32_t bytes) {
  // Exponent and mantissa at the places of bf16's, whose exponents are 120 higher. The chosen bytes are the
  // upper ones of the halves; what the lower ones hold is masked out.
  const uint32_t left = __byte_perm(a, b, bytes), scale = 0x7b807b80u;  // 2¹²⁰ twice
  const uint32_t raw = (left & 0x80008000u) | (left >> 4 & 0x07f007f0u);
  const __nv_bfloat162 value =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(raw), reinterpret_cast<const __nv_bfloat162&>(scale));
  return reinterpret_cast<const uint32_t&>(value);
}
template <>
__device__ __forceinline__ uint32_t widen_pair<half>(uint32_t a, uint32_t b, uint32_t bytes) {
  const uint32_t left = __byte_perm(a, b, bytes), pair = (left >> 8 & 0xffu) | (left >> 16 & 0xff00u);
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(halves.y) << 16 | halves.x;
}
// Bytes 0 and 1, and 2 and 3 of one word; byte i of two words.
constexpr uint32_t kLowPair = 0x1000, kHighPair = 0x3020;
__device__ __forceinline__ constexpr uint32_t same_byte(uint32_t i) { return (4 + i) << 12 | i << 4; }

// One lane's part of a tile of 16 keys: rows lane / 4 and 8 further of keys, 16 channels of each 64; rows
// lane % 4 · 2, the next, and the two 8 further of values, D / 8 channels.
template <int D>
struct Fp8Tile {
  static constexpr int kChunks = D / 64, kWords = D / 32;
  uint4 k[2][kChunks];
  uint32_t v[4][kWords];
  float k_scale[2], v_scale[2];  // of keys lane / 4 and 8 further

  __device__ static int key_row(int n) { return threadIdx.x % 32 / 4 + 8 * n; }
  __device__ static int value_row(int i) { return threadIdx.x % 4 * 2 + i % 2 + 8 * (i / 2); }
  __device__ static int key_channel(int chunk) { return chunk * 64 + threadIdx.x % 4 * 16; }
  __device__ static int value_channel() { return threadIdx.x % 32 / 4 * (D / 8); }
};

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ float read_scale(bool valid, const float* from) {
  float v = 0;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f32 %0, [%1];}"
               : "+f"(v)
               : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  return v;
}
__device__ __forceinline__ uint2 read_half(bool valid, const void* from) {
  uint2 v{};
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];}"
               : "+r"(v.x), "+r"(v.y)
               : "l"(__cvta_generic_to_global(from)), "r"(static_cast<int>(valid)));
  return v;
}

// Attention of one query a sequence to e4m3 keys in blocks of a pool, on tensor cores.
// Math: as mma_decode_kernel (decode_tile.cuh), with mma.sync m16n8k16 of values widened in registers: Sᵀ =
// k · qᵀ, times the keys' scales, and oᵀ += vᵀ · Pᵀ, where P has the values' scales. A lane's 16 bytes are 16
// neighbours in D: D is permuted for q and K alike, and the rows of oᵀ are for V.
// Grid: (splits of keys, KV heads times parts of eight query heads, sequences); four warps that take tiles of
// 16 keys in turn. The next tile is on its way while this one is computed.
// PDL: the first keys and values go to the L2 cache before the block waits for the query.
// Shared memory: what each warp has come to, [warps, heads, D], and its maximum and sum.
template <class T, int D>
__global__ void __launch_bounds__(kBlockThreads, 4)
    fp8_decode_kernel(const __grid_constant__ AttentionTask<T> task, const Divisor block_size,
                      const int parts, const DecodePartials partials, const bool prefetches) {
  constexpr int Heads = kTileHeads, Stride = kWarps * kTileKeys, MmaRows = D / 16;
  // Weights times scales are small numbers, of which fp16 would keep few bits.
  constexpr float Lift = std::is_same_v<T, half> ? 512 : 1;
  using Tile = Fp8Tile<D>;
  __shared__ __align__(16) float joined[kWarps][Heads][D];
  __shared__ float2 scores[kWarps][Heads];
  const int split = blockIdx.x, kv_head = blockIdx.y / parts, b = blockIdx.z;
  const int first_head = kv_head * task.group + blockIdx.y % parts * Heads;
  const int heads = min(Heads, (kv_head + 1) * task.group - first_head);
  griddep_launch();
  const SequenceSpan s = task.sequence(b);
  const KeyRange range = s.queries == 1 ? task.visible(s, 0) : KeyRange{};
  const int begin = max(range.begin, split * partials.split_keys),
            end = min(range.end, (split + 1) * partials.split_keys);
  // The 16 keys that begin at a multiple of 16 are in one block.
  const PagedRows first_row{task.blocks + b * task.blocks_stride, block_size, task.block_size};
  if (prefetches && begin < end)
    for (int i = threadIdx.x; i < 2 * min(end - begin, kFineSplitKeys); i += kBlockThreads) {
      const int64_t row = first_row(begin + i / 2);
      prefetch(i % 2 ? task.fp8_v.row(row, kv_head) : task.fp8_k.row(row, kv_head));
    }
  griddep_wait();
  const bool whole = partials.splits == 1 || range.begin >= range.end;  // this split is all there is
  if (s.queries != 1 || (begin >= end && !(whole && split == 0))) return;

  const int warp = threadIdx.x / 32, at = threadIdx.x % 4, own = threadIdx.x % 32 / 4;
  const int64_t token = s.first_query;
  const auto valid = [&](int key) { return key >= begin && key < end; };
  Tile tile;
  const auto read_keys = [&](int key0) {
    const int64_t first = key0 < end ? first_row(key0) : 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const bool there = valid(key0 + Tile::key_row(n));
      const int64_t row = first + Tile::key_row(n);
#pragma unroll
      for (int c = 0; c < Tile::kChunks; ++c)
        tile.k[n][c] = read_once(there, task.fp8_k.row(row, kv_head) + Tile::key_channel(c));
      tile.k_scale[n] = read_scale(there, task.fp8_k.scale(row, kv_head));
    }
  };
  const auto read_values = [&](int key0) {
    const int64_t first = key0 < end ? first_row(key0) : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* row = task.fp8_v.row(first + Tile::value_row(i), kv_head) + Tile::value_channel();
      const bool there = valid(key0 + Tile::value_row(i));
      if constexpr (D == 128) {
        const uint4 bytes = read_once(there, row);
#pragma unroll
        for (int w = 0; w < 4; ++w) tile.v[i][w] = word_of(bytes, w);
      } else {
        const uint2 bytes = read_half(there, row);
        tile.v[i][0] = bytes.x;
        tile.v[i][1] = bytes.y;
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
      tile.v_scale[n] =
          read_scale(valid(key0 + Tile::key_row(n)), task.fp8_v.scale(first + Tile::key_row(n), kv_head));
  };
  int key0 = begin / kTileKeys * kTileKeys + warp * kTileKeys;
  read_keys(key0);
  read_values(key0);
  uint4 q[Tile::kChunks][2];
#pragma unroll
  for (int c = 0; c < Tile::kChunks; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      q[c][h] = read_once(own < heads, task.q.row(token, first_head + (own < heads ? own : 0)) +
                                           Tile::key_channel(c) + 8 * h);
  float acc[MmaRows][4] = {}, maximum[2] = {kLowest, kLowest}, sum[2] = {};
  for (; key0 < end; key0 += Stride) {
    float score[4] = {};
#pragma unroll
    for (int c = 0; c < Tile::kChunks; ++c)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t low = word_of(tile.k[0][c], w), high = word_of(tile.k[1][c], w);
        const uint32_t a[4] = {widen_pair<T>(low, low, kLowPair), widen_pair<T>(high, high, kLowPair),
                               widen_pair<T>(low, low, kHighPair), widen_pair<T>(high, high, kHighPair)};
        mma<T>(score, a, word_of(q[c][w / 2], w % 2 * 2), word_of(q[c][w / 2], w % 2 * 2 + 1));
      }
    float newest[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = key0 + Tile::key_row(i / 2);
      float slope;
      score[i] = valid(key) ? task.score(score[i] * tile.k_scale[i / 2], b, first_head + 2 * at + i % 2, 0,
                                         key, slope) *
                                  kLog2e
                            : kLowest;
      newest[i % 2] = fmaxf(newest[i % 2], score[i]);
    }
    read_keys(key0 + Stride);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        newest[i] = fmaxf(newest[i], __shfl_xor_sync(0xffffffffu, newest[i], offset));
      const float shrink = weight_of(maximum[i], newest[i]);
      maximum[i] = newest[i];
      sum[i] *= shrink;
#pragma unroll
      for (int m = 0; m < MmaRows; ++m) {
        acc[m][i] *= shrink;
        acc[m][2 + i] *= shrink;
      }
    }
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = weight_of(score[i], maximum[i % 2]);
      sum[i % 2] += weight[i];
      weight[i] *= tile.v_scale[i / 2] * Lift;
    }
    const uint32_t b0 = transposed(pack<T>(weight[0], weight[1])),
                   b1 = transposed(pack<T>(weight[2], weight[3]));
#pragma unroll
    for (int w = 0; w < Tile::kWords; ++w)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        // Channels 2 p and 2 p + 1 of the word: each of two keys, and of the two eight further.
        const uint32_t a[4] = {widen_pair<T>(tile.v[0][w], tile.v[1][w], same_byte(2 * p)),
                               widen_pair<T>(tile.v[0][w], tile.v[1][w], same_byte(2 * p + 1)),
                               widen_pair<T>(tile.v[2][w], tile.v[3][w], same_byte(2 * p)),
                               widen_pair<T>(tile.v[2][w], tile.v[3][w], same_byte(2 * p + 1))};
        mma<T>(acc[2 * w + p], a, b0, b1);
      }
    read_values(key0 + Stride);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
#pragma unroll
    for (int m = 0; m < MmaRows; ++m)
      *reinterpret_cast<float2*>(&joined[warp][2 * at + i][Tile::value_channel() + 2 * m]) = {
          acc[m][i] / Lift, acc[m][2 + i] / Lift};
    if (own == 0) scores[warp][2 * at + i] = {maximum[i], sum[i]};
  }
  __syncthreads();
  join_warps(task, partials, range, b, token, first_head, heads, split, whole, joined, scores);
}

}  // namespace

template <class T>
void launch_fp8_decode(const KernelContext& ctx, const AttentionTask<T>& task, const DecodePartials& partials,
                       int parts) {
  launch_decode(ctx, task, partials, parts, kBlockThreads, fp8_decode_kernel<T, 64>,
                fp8_decode_kernel<T, 128>);
}

template void launch_fp8_decode(const KernelContext&, const AttentionTask<bfloat>&, const DecodePartials&,
                                int);
template void launch_fp8_decode(const KernelContext&, const AttentionTask<half>&, const DecodePartials&, int);

}  // namespace megatron::cuda
