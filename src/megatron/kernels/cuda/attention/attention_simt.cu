#include "megatron/kernels/cuda/attention/attention_simt.cuh"

namespace megatron::cuda {
namespace {

// Maximum that keeps NaN, so that all lanes see it and skip the same tiles.
template <class C>
struct LargestScore {
  __device__ C operator()(C a, C b) const { return a > b || a != a ? a : b; }
};

// Keys [key0, key0 + count) of a sequence, wherever their rows lie.
template <class T>
__device__ void load_keys(const AttentionTask<T>& task, const HeadTensor<T>& x, const Fp8Heads& small,
                          const SequenceSpan& s, int b, int key0, int count, int head, int head_dim,
                          int stride, Compute<T>* to) {
  for (int i = threadIdx.x; i < kTile * head_dim; i += kWarps * 32) {
    int row = i / head_dim, c = i - row * head_dim;
    Compute<T> value = 0;
    if (row < count) {
      const int64_t at = task.key_row(s, b, key0 + row);
      value = small.data ? static_cast<Compute<T>>(widen_e4m3(small.row(at, head)[c]).x) *
                               static_cast<Compute<T>>(*small.scale(at, head))
                         : widen(x.row(at, head)[c]);
    }
    to[row * stride + c] = value;
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kWarps * 32) forward_kernel(AttentionTask<T> task) {
  using C = Compute<T>;
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  extern __shared__ char memory[];
  const int b = blockIdx.z, head = blockIdx.y, kv_head = head / task.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int block_first = blockIdx.x * kWarps;
  if (block_first >= s.queries || s.queries < task.min_queries) return;
  const int query = min(block_first + warp, s.queries - 1);
  const bool mine = block_first + warp < s.queries;
  const int stride = task.d + 1;
  C *keys = reinterpret_cast<C*>(memory), *values = keys + kTile * stride;
  C* q = values + kTile * task.dv + warp * task.d;
  load_row(task.q.row(s.first_query + query, head), task.d, q);

  const KeyRange own = task.visible(s, query);
  const int first = task.visible(s, block_first).begin;
  const int last = task.visible(s, min(block_first + kWarps, s.queries) - 1).end;
  C maximum = lowest, sum = 0, acc[N] = {};
  // In blocks, tiles begin at multiples of their size: what a query gets does not depend on its neighbours.
  for (int key0 = task.blocks ? first / kTile * kTile : first; key0 < last; key0 += kTile) {
    __syncthreads();
    int count = min(kTile, s.keys - key0);
    load_keys(task, task.k, task.fp8_k, s, b, key0, count, kv_head, task.d, stride, keys);
    load_keys(task, task.v, task.fp8_v, s, b, key0, count, kv_head, task.dv, task.dv, values);
    __syncthreads();
    int key = key0 + lane;
    C score = lowest, slope;
    if (own.holds(key)) score = task.score(dot(q, keys + lane * stride, task.d), b, head, query, key, slope);
    constexpr LargestScore<C> largest{};
    C newest = largest(maximum, warp_reduce(score, largest));
    if (newest == lowest) continue;
    C shrink = exp_of(maximum - newest), p = exp_of(score - newest);
    sum = sum * shrink + warp_sum(p);
    maximum = newest;
#pragma unroll
    for (int i = 0; i < N; ++i) acc[i] *= shrink;
    if (task.dropout > 0 && own.holds(key)) p *= task.keep(b, head, query, key);
    accumulate(acc, p, values, task.dv, task.dv);
  }
  if (!mine) return;
  if (task.sinks) {
    C sink = widen(task.sinks[head]), newest = max(maximum, sink), shrink = exp_of(maximum - newest);
    sum = sum * shrink + exp_of(sink - newest);
#pragma unroll
    for (int i = 0; i < N; ++i) acc[i] *= shrink;
    maximum = newest;
  }
  write_row(task.o.row(s.first_query + query, head), acc, sum == 0 ? C(0) : C(1) / sum, task.dv);
  if (lane == 0)
    task.lse[head * task.lse_stride + s.first_query + query] = sum == 0 ? lowest : maximum + log_of(sum);
}

// Only values are held by lanes, so the latent vectors of a cache fit up to 512 elements. Elsewhere the
// backward pass sets the limit.
template <class F>
void dispatch_value_dim(int dv, bool paged, F&& f) {
  if (paged && dv > limits::kMaxHeadDim) return f(std::integral_constant<int, 16>{});
  dispatch_head_dim(dv, std::forward<F>(f));
}

}  // namespace

template <class T>
void simt_attention(const KernelContext& ctx, const AttentionTask<T>& task) {
  dispatch_value_dim(task.dv, task.blocks != nullptr, [&]<int N>(std::integral_constant<int, N>) {
    const auto bytes = static_cast<size_t>(limits::attention_memory(task.d, task.dv, sizeof(Compute<T>)));
    allow_shared(forward_kernel<T, N>, bytes);
    dim3 grid(blocks_for(task.queries, kWarps), task.heads, task.batch);
    forward_kernel<T, N><<<grid, kWarps * 32, bytes, stream_of(ctx)>>>(task);
  });
  check_launch("attention");
}

template void simt_attention(const KernelContext&, const AttentionTask<double>&);
template void simt_attention(const KernelContext&, const AttentionTask<float>&);
template void simt_attention(const KernelContext&, const AttentionTask<bfloat>&);
template void simt_attention(const KernelContext&, const AttentionTask<half>&);

}  // namespace megatron::cuda
