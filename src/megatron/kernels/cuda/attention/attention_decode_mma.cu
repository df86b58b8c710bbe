#include "megatron/kernels/cuda/attention/attention_decode.cuh"

namespace megatron::cuda {
namespace {

constexpr int kWarps = 4, kBlockThreads = kWarps * 32;

// Attention of one query a sequence to keys in blocks of a pool, on tensor cores.
// Math: DecodeTile and DecodeSoftmax, of Tiles tiles at a time.
// Grid: (splits of keys, KV heads times parts of eight query heads, sequences); four warps that take tiles of
// keys in turn. The next tile's keys are on their way while this one's values are added, and so on.
// PDL: the first keys and values go to the L2 cache before the block waits for the query.
// Shared memory: what each warp has come to, [warps, heads, D], and its maximum and sum.
template <class T, int D>
__global__ void __launch_bounds__(kBlockThreads, D == 64 ? 4 : 3)
    mma_decode_kernel(const __grid_constant__ AttentionTask<T> task, const Divisor block_size,
                      const int parts, const DecodePartials partials, const bool prefetches) {
  constexpr int Heads = kTileHeads, Tiles = D == 64 ? 2 : 1, Stride = kWarps * Tiles * kTileKeys;
  using Tile = DecodeTile<T, D>;
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
      const int key = begin + i / 2;
      const int64_t row = first_row(key);
      const T* data = i % 2 ? task.v.row(row, kv_head) : task.k.row(row, kv_head);
#pragma unroll
      for (int c = 0; c < D; c += 64) prefetch(data + c);
    }
  griddep_wait();
  const bool whole = partials.splits == 1 || range.begin >= range.end;  // this split is all there is
  if (s.queries != 1 || (begin >= end && !(whole && split == 0))) return;

  const int warp = threadIdx.x / 32, at = threadIdx.x % 4, own = threadIdx.x % 32 / 4;
  const int64_t token = s.first_query;
  const auto valid = [&](int key) { return key >= begin && key < end; };
  Tile tiles[Tiles];
  const auto read_keys = [&](int key0) {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const int first = key0 + kTileKeys * t;
      const T* rows = first < end ? task.k.row(first_row(first), kv_head) : nullptr;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const T* row = rows + Tile::key_row(n) * task.k.token_stride;
#pragma unroll
        for (int c = 0; c < Tile::kChunks; ++c)
          tiles[t].k[n][c] = read_once(valid(first + Tile::key_row(n)), row + Tile::key_channel(c));
      }
    }
  };
  const auto read_values = [&](int key0) {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      const int first = key0 + kTileKeys * t;
      const T* rows = first < end ? task.v.row(first_row(first), kv_head) : nullptr;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const T* row = rows + Tile::value_row(i) * task.v.token_stride;
#pragma unroll
        for (int h = 0; h < Tile::kHalves; ++h)
          tiles[t].v[i][h] = read_once(valid(first + Tile::value_row(i)), row + Tile::value_channel(h));
      }
    }
  };
  int key0 = begin / (Tiles * kTileKeys) * (Tiles * kTileKeys) + warp * Tiles * kTileKeys;
  read_keys(key0);
  read_values(key0);
  uint4 q[Tile::kChunks];
#pragma unroll
  for (int c = 0; c < Tile::kChunks; ++c)
    q[c] = read_once(own < heads,
                     task.q.row(token, first_head + (own < heads ? own : 0)) + Tile::key_channel(c));
  DecodeSoftmax<T, D> softmax;
  for (; key0 < end; key0 += Stride) {
    float score[Tiles][4], newest[2] = {kLowest, kLowest};
#pragma unroll
    for (int t = 0; t < Tiles; ++t) {
      tiles[t].dots(score[t], q);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + kTileKeys * t + Tile::key_row(i / 2);
        float slope;
        score[t][i] = valid(key)
                          ? task.score(score[t][i], b, first_head + 2 * at + i % 2, 0, key, slope) * kLog2e
                          : kLowest;
        newest[i % 2] = fmaxf(newest[i % 2], score[t][i]);
      }
    }
    read_keys(key0 + Stride);
    softmax.raise(newest);
#pragma unroll
    for (int t = 0; t < Tiles; ++t) softmax.add(score[t], tiles[t]);
    read_values(key0 + Stride);
  }
  softmax.leave(joined[warp], scores[warp]);
  __syncthreads();
  join_warps(task, partials, range, b, token, first_head, heads, split, whole, joined, scores);
}

}  // namespace

template <class T>
void launch_mma_decode(const KernelContext& ctx, const AttentionTask<T>& task, const DecodePartials& partials,
                       int parts) {
  launch_decode(ctx, task, partials, parts, kBlockThreads, mma_decode_kernel<T, 64>,
                mma_decode_kernel<T, 128>);
}

template void launch_mma_decode(const KernelContext&, const AttentionTask<bfloat>&, const DecodePartials&,
                                int);
template void launch_mma_decode(const KernelContext&, const AttentionTask<half>&, const DecodePartials&, int);

}  // namespace megatron::cuda
