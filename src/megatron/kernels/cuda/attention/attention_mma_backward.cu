#include "megatron/kernels/cuda/attention/attention_mma.cuh"
#include "megatron/kernels/limits/attention.h"

namespace megatron::cuda {
namespace {

// Backward of one score. In: qk = q · k, dp = grad_o · v, and the factor of dropout, keep. Out: qk becomes
// the probability that multiplied v, dp the gradient of q · k.
template <class T>
__device__ __forceinline__ void score_backward(const AttentionTask<T>& task, float& qk, float& dp, float lse2,
                                               float delta, float keep, int b, int head, int query, int key) {
  float slope, score = task.score(qk, b, head, query, key, slope) * kLog2e;
  float p = exp2_fast(score - lse2);
  dp = p * (dp * keep - delta) * slope * task.scale;
  qk = p * keep;
}

// score_backward without softcap and bias.
__device__ __forceinline__ void plain_backward(float factor, float scale, float& qk, float& dp, float lse2,
                                               float delta, float keep) {
  const float p = exp2_fast(fmaf(qk, factor, -lse2));
  dp = p * (dp * keep - delta) * scale;
  qk = p * keep;
}

// dq on tensor cores (mma.sync m16n8k16).
// Math: p = exp(s − lse), ds = p · (grad_o · vᵀ − delta), dq = scale · ds · k, with delta = Σ o · grad_o.
// Grid: (blocks of 64 queries, heads, batch). Four warps have 16 queries each and pass over the keys in
// tiles of N.
// Shared memory: q and grad_o [64, D], then two stages of k and v [N, D]; static, the dropout mask of a
// tile.
// Barriers: __syncthreads before a tile is read and after. cp.async loads the next tile meanwhile.
template <class T, int D, int N>
__global__ void __launch_bounds__(kMmaThreads) dq_kernel(const __grid_constant__ AttentionTask<T> task,
                                                         const __grid_constant__ AttentionGrads<T> grads) {
  extern __shared__ __align__(128) char memory[];
  T* data = reinterpret_cast<T*>(memory);
  const SharedTile<T, kMmaRows, D> queries{data}, grad_o{data + queries.kElements};
  data += 2 * queries.kElements;
  using KeyTile = SharedTile<T, N, D>;

  const int b = blockIdx.z, head = blockIdx.y, kv_head = head / task.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int row0 = (gridDim.x - 1 - blockIdx.x) * kMmaRows;
  if (row0 >= s.queries) return;
  const KeyRange first_range = task.visible(s, row0),
                 last_range = task.visible(s, min(row0 + kMmaRows, s.queries) - 1);
  const int begin = first_range.begin, end = last_range.end;
  const int tiles = end > begin ? (end - begin + N - 1) / N : 0;
  auto fetch = [&](int tile) {
    T* to = data + (tile & 1) * 2 * KeyTile::kElements;
    int key0 = begin + tile * N, count = s.keys - key0;
    KeyTile{to}.fill(task.k, s.first_key + key0, kv_head, count, task.d);
    KeyTile{to + KeyTile::kElements}.fill(task.v, s.first_key + key0, kv_head, count, task.dv);
  };
  queries.fill(task.q, s.first_query + row0, head, s.queries - row0, task.d);
  grad_o.fill(grads.grad_o, s.first_query + row0, head, s.queries - row0, task.dv);
  if (tiles) fetch(0);
  cp_async_commit();

  int query[2];
  KeyRange range[2];
  float lse2[2], delta[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    query[h] = min(row0 + warp * 16 + lane / 4 + 8 * h, s.queries - 1);
    range[h] = task.visible(s, query[h]);
    int64_t token = s.first_query + query[h];
    lse2[h] = task.lse[head * task.lse_stride + token] * kLog2e;
    delta[h] = grads.delta[static_cast<int64_t>(head) * task.query_tokens + token];
  }
  __shared__ uint32_t kept_words[kMmaRows * N / 32];
  const KeptTile<kMmaRows, N> kept{kept_words};
  const RngKey random = task.dropout_key.resolved();
  const AttentionOrigin origin = attention_origin(task.offsets, b, s.first_query, s.queries, s.keys);
  float acc[D / 8][4] = {};
  const bool plain = task.plain(), dropout = task.dropout > 0;
  const float factor = task.scale * kLog2e;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    cp_async_commit();
    const int key0 = begin + tile * N;
    if (dropout) kept.fill(task, random, origin, head, row0, key0);
    cp_async_wait<1>();
    __syncthreads();
    const KeyTile keys{data + (tile & 1) * 2 * KeyTile::kElements}, values{keys.data + KeyTile::kElements};
    const bool masked = key0 < last_range.begin || key0 + N > first_range.end;
    float qk[N / 8][4], dp[N / 8][4];
    warp_gemm_nt<T, D, N>(qk, queries, warp * 16, keys);
    warp_gemm_nt<T, D, N>(dp, grad_o, warp * 16, values);
    if (plain && !masked && !dropout) {
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          plain_backward(factor, task.scale, qk[n][i], dp[n][i], lse2[i / 2], delta[i / 2], 1);
    } else {
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int h = i / 2, column = n * 8 + (lane % 4) * 2 + i % 2, key = key0 + column;
          bool seen = !masked || range[h].holds(key);
          float keep = 1;
          if (dropout) keep = kept.holds(warp * 16 + lane / 4 + 8 * h, column) ? task.dropout_scale : 0;
          if (plain)
            plain_backward(factor, task.scale, qk[n][i], dp[n][i], lse2[h], delta[h], keep);
          else if (seen)
            score_backward(task, qk[n][i], dp[n][i], lse2[h], delta[h], keep, b, head, query[h], key);
          if (!seen) dp[n][i] = 0;
        }
    }
    warp_gemm_nn_add<T, D, N>(acc, dp, keys);
    __syncthreads();
  }
  cp_async_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (int row = row0 + warp * 16 + lane / 4 + 8 * h; row < s.queries)
      write_half<T, D>(grads.dq.row(s.first_query + row, head), acc, h, 1.f, task.d);
}

// dk and dv on tensor cores (mma.sync m16n8k16).
// Math: dv = pᵀ · grad_o, dk = scale · dsᵀ · q, with p and ds of dq_kernel, held transposed: rows are keys.
// Grid: (blocks of 64 keys, KV heads, batch). A block passes over the queries of all heads of its group in
// tiles of N, so that no two blocks add to the same gradient.
// Shared memory: k and v [64, D], then two stages of q and grad_o [N, D], then lse and delta of both stages;
// static, the dropout mask of a tile.
// Barriers: __syncthreads before a tile is read and after. cp.async loads the next tile meanwhile.
template <class T, int D, int N>
__global__ void __launch_bounds__(kMmaThreads) dkv_kernel(const __grid_constant__ AttentionTask<T> task,
                                                          const __grid_constant__ AttentionGrads<T> grads) {
  extern __shared__ __align__(128) char memory[];
  T* data = reinterpret_cast<T*>(memory);
  const SharedTile<T, kMmaRows, D> keys{data}, values{data + keys.kElements};
  data += 2 * keys.kElements;
  using QueryTile = SharedTile<T, N, D>;
  float* statistics = reinterpret_cast<float*>(data + 4 * QueryTile::kElements);  // [stage][lse2, delta][N]

  const int b = blockIdx.z, kv_head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int row0 = blockIdx.x * kMmaRows;
  if (row0 >= s.keys) return;
  const KeyRange seeing = task.seeing(s, row0, min(row0 + kMmaRows, s.keys));
  const int per_head = seeing.end > seeing.begin ? (seeing.end - seeing.begin + N - 1) / N : 0;
  const int tiles = per_head * task.group;
  auto fetch = [&](int tile) {
    int stage = tile & 1, head = kv_head * task.group + tile / per_head;
    int query0 = seeing.begin + tile % per_head * N, count = s.queries - query0;
    T* to = data + stage * 2 * QueryTile::kElements;
    QueryTile{to}.fill(task.q, s.first_query + query0, head, count, task.d);
    QueryTile{to + QueryTile::kElements}.fill(grads.grad_o, s.first_query + query0, head, count, task.dv);
    if (int i = threadIdx.x; i < N) {
      int64_t token = s.first_query + min(query0 + i, s.queries - 1);
      statistics[(2 * stage) * N + i] = task.lse[head * task.lse_stride + token] * kLog2e;
      statistics[(2 * stage + 1) * N + i] =
          grads.delta[static_cast<int64_t>(head) * task.query_tokens + token];
    }
  };
  keys.fill(task.k, s.first_key + row0, kv_head, s.keys - row0, task.d);
  values.fill(task.v, s.first_key + row0, kv_head, s.keys - row0, task.dv);
  if (tiles) fetch(0);
  cp_async_commit();

  __shared__ uint32_t kept_words[N * kMmaRows / 32];
  const KeptTile<N, kMmaRows> kept{kept_words};
  const RngKey random = task.dropout_key.resolved();
  const AttentionOrigin origin = attention_origin(task.offsets, b, s.first_query, s.queries, s.keys);
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  const bool plain = task.plain(), dropout = task.dropout > 0;
  const float factor = task.scale * kLog2e;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    cp_async_commit();
    const int stage = tile & 1, head = kv_head * task.group + tile / per_head;
    const int query0 = seeing.begin + tile % per_head * N;
    if (dropout) kept.fill(task, random, origin, head, query0, row0);
    cp_async_wait<1>();
    __syncthreads();
    const QueryTile queries{data + stage * 2 * QueryTile::kElements},
        grad_o{queries.data + QueryTile::kElements};
    const float *lse2 = statistics + 2 * stage * N, *delta = lse2 + N;
    const int last_query = query0 + N - 1;
    const bool masked = last_query >= s.queries || row0 + kMmaRows > task.visible(s, query0).end ||
                        row0 < task.visible(s, last_query).begin;
    float qk[N / 8][4], dp[N / 8][4];
    warp_gemm_nt<T, D, N>(qk, keys, warp * 16, queries);
    warp_gemm_nt<T, D, N>(dp, values, warp * 16, grad_o);
    if (plain && !masked && !dropout) {
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int column = n * 8 + (lane % 4) * 2 + i % 2;
          plain_backward(factor, task.scale, qk[n][i], dp[n][i], lse2[column], delta[column], 1);
        }
    } else {
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int column = n * 8 + (lane % 4) * 2 + i % 2, query = query0 + column;
          int row = warp * 16 + lane / 4 + 8 * (i / 2), key = row0 + row;
          bool seen = !masked || (query < s.queries && task.visible(s, query).holds(key));
          float keep = 1;
          if (dropout) keep = kept.holds(column, row) ? task.dropout_scale : 0;
          if (plain)
            plain_backward(factor, task.scale, qk[n][i], dp[n][i], lse2[column], delta[column], keep);
          else if (seen)
            score_backward(task, qk[n][i], dp[n][i], lse2[column], delta[column], keep, b, head, query, key);
          if (!seen) qk[n][i] = dp[n][i] = 0;
        }
    }
    warp_gemm_nn_add<T, D, N>(dv, qk, grad_o);
    warp_gemm_nn_add<T, D, N>(dk, dp, queries);
    __syncthreads();
  }
  cp_async_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (int row = row0 + warp * 16 + lane / 4 + 8 * h; row < s.keys) {
      write_half<T, D>(grads.dk.row(s.first_key + row, kv_head), dk, h, 1.f, task.d);
      write_half<T, D>(grads.dv.row(s.first_key + row, kv_head), dv, h, 1.f, task.dv);
    }
}

template <class T, int D, int N>
bool launch_dq(const KernelContext& ctx, const AttentionTask<T>& task, const AttentionGrads<T>& grads) {
  const cudaStream_t stream = stream_of(ctx);  // also makes its GPU current
  constexpr size_t bytes = sizeof(T) * (2 * kMmaRows * D + 4 * N * D);
  // head_dim 256 needs 128 KiB, which not every GPU has.
  if (bytes > static_cast<size_t>(runtime_of(ctx).properties().shared_memory_per_block)) return false;
  allow_shared_memory(dq_kernel<T, D, N>, bytes);
  dim3 grid(blocks_for(task.queries, kMmaRows), task.heads, task.batch);
  dq_kernel<T, D, N><<<grid, kMmaThreads, bytes, stream>>>(task, grads);
  check_launch("attention_backward");
  return true;
}

template <class T, int D, int N>
void launch_dkv(const KernelContext& ctx, const AttentionTask<T>& task, const AttentionGrads<T>& grads) {
  const cudaStream_t stream = stream_of(ctx);  // also makes its GPU current
  size_t bytes = sizeof(T) * (2 * kMmaRows * D + 4 * N * D) + 4 * N * sizeof(float);
  allow_shared_memory(dkv_kernel<T, D, N>, bytes);
  dim3 grid(blocks_for(task.keys, kMmaRows), task.kv_heads, task.batch);
  dkv_kernel<T, D, N><<<grid, kMmaThreads, bytes, stream>>>(task, grads);
  check_launch("attention_backward");
}

}  // namespace

template <class T>
bool mma_attention_dq(const KernelContext& ctx, const AttentionTask<T>& task,
                      const AttentionGrads<T>& grads) {
  int head_dim = std::max(task.d, task.dv);
  if (head_dim > limits::kMaxHeadDim || !fits_tensor_cores(task) || !grads.grad_o.vectors(8) ||
      !grads.dq.vectors(8))
    return false;
  if (head_dim <= 64) return launch_dq<T, 64, 64>(ctx, task, grads);
  if (head_dim <= 128) return launch_dq<T, 128, 64>(ctx, task, grads);
  return launch_dq<T, 256, 32>(ctx, task, grads);
}

// Accumulators of dk and dv for a larger head_dim would not fit into registers.
template <class T>
bool mma_attention_dkv(const KernelContext& ctx, const AttentionTask<T>& task,
                       const AttentionGrads<T>& grads) {
  int head_dim = std::max(task.d, task.dv);
  if (head_dim > 128 || !fits_tensor_cores(task) || !grads.grad_o.vectors(8) || !grads.dk.vectors(8) ||
      !grads.dv.vectors(8))
    return false;
  if (head_dim <= 64)
    launch_dkv<T, 64, 64>(ctx, task, grads);
  else
    launch_dkv<T, 128, 32>(ctx, task, grads);
  return true;
}

template bool mma_attention_dq(const KernelContext&, const AttentionTask<bfloat>&,
                               const AttentionGrads<bfloat>&);
template bool mma_attention_dq(const KernelContext&, const AttentionTask<half>&, const AttentionGrads<half>&);
template bool mma_attention_dkv(const KernelContext&, const AttentionTask<bfloat>&,
                                const AttentionGrads<bfloat>&);
template bool mma_attention_dkv(const KernelContext&, const AttentionTask<half>&,
                                const AttentionGrads<half>&);

}  // namespace megatron::cuda
