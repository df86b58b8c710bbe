#include "megatron/kernels/cuda/attention/attention_mma.cuh"
#include "megatron/kernels/limits/attention.h"

namespace megatron::cuda {
namespace {

constexpr int kSequencesAtOnce = 16;  // of those in blocks of a pool

// Where keys lie: one after the other, or in blocks of a pool, which may be e4m3.
enum class KeyPlace { row, blocks, fp8_blocks };

// The general path from q · k to scores: masks, softcap, bias. Kept out of the kernel's usual path, which
// stays short.
template <int N, class T>
__device__ __forceinline__ void finish_scores(const AttentionTask<T>& task, bool plain,
                                              float (&score)[N / 8][4], int b, int head,
                                              const int (&query)[2], const KeyRange (&range)[2], int key0) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int h = i / 2, key = key0 + n * 8 + (threadIdx.x % 4) * 2 + i % 2;
      float slope;
      if (plain)
        score[n][i] *= task.scale * kLog2e;
      else if (range[h].holds(key))
        score[n][i] = task.score(score[n][i], b, head, query[h], key, slope) * kLog2e;
      if (!range[h].holds(key)) score[n][i] = -std::numeric_limits<float>::infinity();
    }
}

// Flash attention forward on tensor cores (mma.sync m16n8k16).
// Math: o = softmax(scale · q · kᵀ + masks) · v by online softmax, and lse. Scores are kept times log2(e),
// for exp2.
// Grid: (blocks of 64 queries, heads, sequences); the longest rows of a causal mask come first. Four warps
// have 16 queries each and pass over the keys in tiles of N.
// Shared memory: q [64, D], then two stages of k and v [N, D]; static, the dropout mask of a tile.
// Barriers: __syncthreads before a tile is read and after. cp.async loads the next tile meanwhile.
// Paged: keys lie in blocks of a pool, where e4m3 is widened on its way. Tiles begin at multiples of N then,
// so that what a query gets does not depend on the queries beside it.
template <class T, int D, int N, KeyPlace Place>
__device__ __forceinline__ void attend(const AttentionTask<T>& task, const int b, const int row0, T* data,
                                       uint32_t* kept_words) {
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  constexpr bool Paged = Place != KeyPlace::row;
  const SharedTile<T, kMmaRows, D> queries{data};
  data += queries.kElements;
  using KeyTile = SharedTile<T, N, D>;

  const int head = blockIdx.y, kv_head = head / task.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int last_row = min(row0 + kMmaRows, s.queries) - 1;
  const KeyRange first_range = task.visible(s, row0), last_range = task.visible(s, last_row);
  const int begin = Paged ? first_range.begin / N * N : first_range.begin, end = last_range.end;
  const int tiles = end > begin ? (end - begin + N - 1) / N : 0;

  auto fetch = [&](int tile) {
    T* to = data + (tile & 1) * 2 * KeyTile::kElements;
    int key0 = begin + tile * N, count = s.keys - key0;
    const KeyTile keys{to}, values{to + KeyTile::kElements};
    if constexpr (Paged) {
      auto token = [&](int row) { return task.key_row(s, b, key0 + row); };
      if constexpr (Place == KeyPlace::fp8_blocks) {
        keys.widen_from(task.fp8_k, kv_head, count, task.d, token);
        values.widen_from(task.fp8_v, kv_head, count, task.dv, token);
      } else {
        keys.fill_from(task.k, kv_head, count, task.d, token);
        values.fill_from(task.v, kv_head, count, task.dv, token);
      }
    } else {
      keys.fill(task.k, s.first_key + key0, kv_head, count, task.d);
      values.fill(task.v, s.first_key + key0, kv_head, count, task.dv);
    }
  };
  queries.fill(task.q, s.first_query + row0, head, s.queries - row0, task.d);
  if (tiles) fetch(0);
  cp_async_commit();

  int query[2];
  KeyRange range[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    query[h] = min(row0 + warp * 16 + lane / 4 + 8 * h, s.queries - 1);
    range[h] = task.visible(s, query[h]);
  }
  const KeptTile<kMmaRows, N> kept{kept_words};
  const RngKey random = task.dropout_key.resolved();
  const AttentionOrigin origin = attention_origin(task.offsets, b, s.first_query, s.queries, s.keys);
  float acc[D / 8][4] = {}, maximum[2] = {lowest, lowest}, sum[2] = {0, 0};
  const float factor = task.scale * kLog2e;
  const bool plain = task.plain();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    cp_async_commit();
    const int key0 = begin + tile * N;
    if (task.dropout > 0) kept.fill(task, random, origin, head, row0, key0);
    cp_async_wait<1>();
    __syncthreads();
    const KeyTile keys{data + (tile & 1) * 2 * KeyTile::kElements}, values{keys.data + KeyTile::kElements};
    float score[N / 8][4];
    warp_gemm_nt<T, D, N>(score, queries, warp * 16, keys);

    const bool masked = key0 < last_range.begin || key0 + N > first_range.end;
    if (plain && !masked) {
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) score[n][i] *= factor;
    } else {
      finish_scores<N>(task, plain, score, b, head, query, range, key0);
    }
    float newest[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) newest[i / 2] = fmaxf(newest[i / 2], score[n][i]);
    float base[2], shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      newest[h] = fmaxf(newest[h], __shfl_xor_sync(0xffffffffu, newest[h], 1));
      newest[h] = fmaxf(newest[h], __shfl_xor_sync(0xffffffffu, newest[h], 2));
      base[h] = newest[h] == lowest ? 0.f : newest[h];  // a row that has seen nothing yet
      shrink[h] = exp2_fast(maximum[h] - base[h]);
      maximum[h] = newest[h];
      sum[h] *= shrink[h];
    }
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[n][i] = exp2_fast(score[n][i] - base[i / 2]);
        sum[i / 2] += score[n][i];
      }
    if (task.dropout > 0)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!kept.holds(warp * 16 + lane / 4 + 8 * (i / 2), n * 8 + (lane % 4) * 2 + i % 2))
            score[n][i] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= shrink[i / 2];
    warp_gemm_nn_add<T, D, N>(acc, score, values);
    __syncthreads();
  }
  cp_async_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    float scale = task.dropout_scale;
    if (task.sinks) {
      float sink = widen(task.sinks[head]) * kLog2e, newest = fmaxf(maximum[h], sink);
      const float shrink = exp2_fast(maximum[h] - newest);
      scale *= shrink;
      sum[h] = sum[h] * shrink + exp2_fast(sink - newest);
      maximum[h] = newest;
    }
    int row = row0 + warp * 16 + lane / 4 + 8 * h;
    if (row >= s.queries) continue;
    int64_t token = s.first_query + row;
    write_half<T, D>(task.o.row(token, head), acc, h, sum[h] == 0 ? 0.f : scale / sum[h], task.dv);
    if (lane % 4 == 0)
      task.lse[head * task.lse_stride + token] = sum[h] == 0 ? lowest : maximum[h] * kLn2 + logf(sum[h]);
  }
}

// Sequences in blocks of a pool may be many, of which few have more than one query: the blocks of a grid's
// last dimension take those in turn, and look for them 32 at a time.
template <class T, int D, int N, KeyPlace Place>
__global__ void __launch_bounds__(kMmaThreads) forward_kernel(const __grid_constant__ AttentionTask<T> task) {
  extern __shared__ __align__(128) char memory[];
  __shared__ uint32_t kept_words[kMmaRows * N / 32];
  T* data = reinterpret_cast<T*>(memory);
  const int row0 = (gridDim.x - 1 - blockIdx.x) * kMmaRows;  // the longest rows of a causal mask first
  const auto has_rows = [&](int b) {
    const int queries = task.sequence(b).queries;
    return row0 < queries && queries >= task.min_queries;
  };
  if constexpr (Place == KeyPlace::row) {
    if (has_rows(blockIdx.z)) attend<T, D, N, Place>(task, blockIdx.z, row0, data, kept_words);
  } else {
    int turn = 0;
    for (int first = 0; first < task.batch; first += 32) {
      const int own = first + static_cast<int>(threadIdx.x % 32);
      uint32_t found = __ballot_sync(0xffffffffu, own < task.batch && has_rows(own));
      for (; found; found &= found - 1) {
        if (turn++ % static_cast<int>(gridDim.z) != static_cast<int>(blockIdx.z)) continue;
        attend<T, D, N, Place>(task, first + __ffs(static_cast<int>(found)) - 1, row0, data, kept_words);
        __syncthreads();  // before the next one fills shared memory
      }
    }
  }
}

template <class T, int D, int N, KeyPlace Place>
void launch_kernel(const KernelContext& ctx, const AttentionTask<T>& task) {
  const cudaStream_t stream = stream_of(ctx);  // also makes its GPU current
  size_t bytes = sizeof(T) * (kMmaRows * D + 4 * N * D);
  allow_shared_memory(forward_kernel<T, D, N, Place>, bytes);
  const int sequences = Place == KeyPlace::row ? task.batch : std::min(task.batch, kSequencesAtOnce);
  dim3 grid(blocks_for(task.queries, kMmaRows), task.heads, sequences);
  forward_kernel<T, D, N, Place><<<grid, kMmaThreads, bytes, stream>>>(task);
  check_launch("attention");
}

template <class T, int D, int N>
void launch(const KernelContext& ctx, const AttentionTask<T>& task) {
  if (!task.blocks) return launch_kernel<T, D, N, KeyPlace::row>(ctx, task);
  if (task.fp8_k.data) return launch_kernel<T, D, N, KeyPlace::fp8_blocks>(ctx, task);
  launch_kernel<T, D, N, KeyPlace::blocks>(ctx, task);
}

}  // namespace

template <class T>
bool mma_attention(const KernelContext& ctx, const AttentionTask<T>& task) {
  int head_dim = std::max(task.d, task.dv);
  if (head_dim > limits::kMaxHeadDim || !fits_tensor_cores(task)) return false;
  if (head_dim <= 64)
    launch<T, 64, 64>(ctx, task);
  else if (head_dim <= 128)
    launch<T, 128, 64>(ctx, task);
  else
    launch<T, 256, 32>(ctx, task);
  return true;
}

template bool mma_attention(const KernelContext&, const AttentionTask<bfloat>&);
template bool mma_attention(const KernelContext&, const AttentionTask<half>&);

}  // namespace megatron::cuda
