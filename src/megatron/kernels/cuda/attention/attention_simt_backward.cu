#include "megatron/kernels/cuda/attention/attention_simt.cuh"

namespace megatron::cuda {
namespace {

// p and d(loss)/d(qk) of one (query, key).
template <class C>
struct ScoreGrad {
  C kept_probability, dqk;
};

template <class T>
__device__ ScoreGrad<Compute<T>> score_grad(const AttentionTask<T>& task, Compute<T> qk, Compute<T> dp,
                                            Compute<T> lse, Compute<T> delta, int b, int head, int query,
                                            int key) {
  using C = Compute<T>;
  C slope, score = task.score(qk, b, head, query, key, slope);
  C p = exp_of(score - lse), keep = task.dropout > 0 ? task.keep(b, head, query, key) : C(1);
  return {p * keep, p * (dp * keep - delta) * slope * task.scale};
}

// dq: a warp per query, tiles of keys.
template <class T, int N>
__global__ void __launch_bounds__(kWarps * 32) dq_kernel(AttentionTask<T> task, AttentionGrads<T> grads) {
  using C = Compute<T>;
  extern __shared__ char memory[];
  const int b = blockIdx.z, head = blockIdx.y, kv_head = head / task.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int block_first = blockIdx.x * kWarps;
  if (block_first >= s.queries) return;
  const int query = min(block_first + warp, s.queries - 1);
  const int64_t token = s.first_query + query;
  const int stride = task.d + 1, value_stride = task.dv + 1;
  C *keys = reinterpret_cast<C*>(memory), *values = keys + kTile * stride;
  C *q = values + kTile * value_stride + warp * (task.d + task.dv), *grad_o = q + task.d;
  load_row(task.q.row(token, head), task.d, q);
  load_row(grads.grad_o.row(token, head), task.dv, grad_o);
  const C lse = task.lse[head * task.lse_stride + token];
  const C delta = grads.delta[static_cast<int64_t>(head) * task.query_tokens + token];

  const KeyRange own = task.visible(s, query);
  const int first = task.visible(s, block_first).begin;
  const int last = task.visible(s, min(block_first + kWarps, s.queries) - 1).end;
  C acc[N] = {};
  for (int key0 = first; key0 < last; key0 += kTile) {
    __syncthreads();
    int count = min(kTile, s.keys - key0);
    load_tile(task.k, s.first_key + key0, kv_head, count, task.d, stride, keys);
    load_tile(task.v, s.first_key + key0, kv_head, count, task.dv, value_stride, values);
    __syncthreads();
    int key = key0 + lane;
    C ds = 0;
    if (own.holds(key))
      ds = score_grad<T>(task, dot(q, keys + lane * stride, task.d),
                         dot(grad_o, values + lane * value_stride, task.dv), lse, delta, b, head, query, key)
               .dqk;
    accumulate(acc, ds, keys, stride, task.d);
  }
  if (block_first + warp < s.queries) write_row(grads.dq.row(token, head), acc, C(1), task.d);
}

// dk and dv: a warp per key, tiles of queries of every head of the group in turn.
template <class T, int N>
__global__ void __launch_bounds__(kWarps * 32) dkv_kernel(AttentionTask<T> task, AttentionGrads<T> grads) {
  using C = Compute<T>;
  extern __shared__ char memory[];
  const int b = blockIdx.z, kv_head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int block_first = blockIdx.x * kWarps;
  if (block_first >= s.keys) return;
  const int key = min(block_first + warp, s.keys - 1);
  const int64_t token = s.first_key + key;
  const int stride = task.d + 1, value_stride = task.dv + 1;
  C *queries = reinterpret_cast<C*>(memory), *grad_o = queries + kTile * stride;
  C *k = grad_o + kTile * value_stride + warp * (task.d + task.dv), *v = k + task.d;
  load_row(task.k.row(token, kv_head), task.d, k);
  load_row(task.v.row(token, kv_head), task.dv, v);
  const KeyRange range = task.seeing(s, block_first, min(block_first + kWarps, s.keys));
  C dk[N] = {}, dv[N] = {};
  for (int member = 0; member < task.group; ++member) {
    int head = kv_head * task.group + member;
    for (int query0 = range.begin; query0 < range.end; query0 += kTile) {
      __syncthreads();
      int count = min(kTile, s.queries - query0);
      load_tile(task.q, s.first_query + query0, head, count, task.d, stride, queries);
      load_tile(grads.grad_o, s.first_query + query0, head, count, task.dv, value_stride, grad_o);
      __syncthreads();
      int query = query0 + lane;
      ScoreGrad<C> grad{0, 0};
      if (query < s.queries && task.visible(s, query).holds(key)) {
        int64_t at = s.first_query + query;
        grad = score_grad<T>(
            task, dot(k, queries + lane * stride, task.d), dot(v, grad_o + lane * value_stride, task.dv),
            task.lse[head * task.lse_stride + at],
            grads.delta[static_cast<int64_t>(head) * task.query_tokens + at], b, head, query, key);
      }
      accumulate(dk, grad.dqk, queries, stride, task.d);
      accumulate(dv, grad.kept_probability, grad_o, value_stride, task.dv);
    }
  }
  if (block_first + warp >= s.keys) return;
  write_row(grads.dk.row(token, kv_head), dk, C(1), task.d);
  write_row(grads.dv.row(token, kv_head), dv, C(1), task.dv);
}

}  // namespace

template <class T>
void simt_attention_backward(const KernelContext& ctx, const AttentionTask<T>& task,
                             const AttentionGrads<T>& grads, bool queries, bool keys) {
  dispatch_head_dim(std::max(task.d, task.dv), [&]<int N>(std::integral_constant<int, N>) {
    const auto bytes =
        static_cast<size_t>(limits::attention_backward_memory(task.d, task.dv, sizeof(Compute<T>)));
    cudaStream_t stream = stream_of(ctx);
    if (queries) {
      allow_shared(dq_kernel<T, N>, bytes);
      dim3 grid(blocks_for(task.queries, kWarps), task.heads, task.batch);
      dq_kernel<T, N><<<grid, kWarps * 32, bytes, stream>>>(task, grads);
      check_launch("attention_backward");
    }
    if (keys) {
      allow_shared(dkv_kernel<T, N>, bytes);
      dim3 grid(blocks_for(task.keys, kWarps), task.kv_heads, task.batch);
      dkv_kernel<T, N><<<grid, kWarps * 32, bytes, stream>>>(task, grads);
      check_launch("attention_backward");
    }
  });
}

template void simt_attention_backward(const KernelContext&, const AttentionTask<double>&,
                                      const AttentionGrads<double>&, bool, bool);
template void simt_attention_backward(const KernelContext&, const AttentionTask<float>&,
                                      const AttentionGrads<float>&, bool, bool);
template void simt_attention_backward(const KernelContext&, const AttentionTask<bfloat>&,
                                      const AttentionGrads<bfloat>&, bool, bool);
template void simt_attention_backward(const KernelContext&, const AttentionTask<half>&,
                                      const AttentionGrads<half>&, bool, bool);

}  // namespace megatron::cuda
