#include "megatron/kernels/cuda/attention/attention_simt.cuh"

namespace megatron::cuda {
namespace {

// There is no atomicMax of floating-point numbers. What is not a number changes nothing.
__device__ void raise_to(float* to, float value) {
  auto* bits = reinterpret_cast<unsigned int*>(to);
  for (unsigned int held = *bits; value > __uint_as_float(held);) {
    const unsigned int seen = atomicCAS(bits, held, __float_as_uint(value));
    if (seen == held) return;
    held = seen;
  }
}
__device__ void raise_to(double* to, double value) {
  auto* bits = reinterpret_cast<unsigned long long*>(to);
  for (unsigned long long held = *bits; value > __longlong_as_double(static_cast<long long>(held));) {
    const unsigned long long seen =
        atomicCAS(bits, held, static_cast<unsigned long long>(__double_as_longlong(value)));
    if (seen == held) return;
    held = seen;
  }
}

// largest[head] = max(itself, scores of its queries). A warp per query, a lane per key of a tile, as in the
// forward kernel: grid (queries / kWarps, heads, batch); shared memory holds a tile of keys [kTile, d + 1]
// and a query [d] for each warp.
template <class T>
__global__ void __launch_bounds__(kWarps * 32) max_scores_kernel(AttentionTask<T> task, Compute<T>* largest) {
  using C = Compute<T>;
  extern __shared__ char memory[];
  const int b = blockIdx.z, head = blockIdx.y, kv_head = head / task.group;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SequenceSpan s = task.sequence(b);
  const int block_first = blockIdx.x * kWarps;
  if (block_first >= s.queries) return;
  const int query = min(block_first + warp, s.queries - 1);
  const int stride = task.d + 1;
  C *keys = reinterpret_cast<C*>(memory), *q = keys + kTile * stride + warp * task.d;
  load_row(task.q.row(s.first_query + query, head), task.d, q);
  __syncwarp();

  const KeyRange own = task.visible(s, query);
  const int first = task.visible(s, block_first).begin;
  const int last = task.visible(s, min(block_first + kWarps, s.queries) - 1).end;
  C maximum = -std::numeric_limits<C>::infinity();
  for (int key0 = first; key0 < last; key0 += kTile) {
    __syncthreads();
    load_tile(task.k, s.first_key + key0, kv_head, min(kTile, s.keys - key0), task.d, stride, keys);
    __syncthreads();
    C slope;
    if (own.holds(key0 + lane))
      maximum =
          max(maximum, task.score(dot(q, keys + lane * stride, task.d), b, head, query, key0 + lane, slope));
  }
  if (own.end > own.begin) raise_to(largest + head, maximum);
}

}  // namespace

void attention_max_scores(const KernelContext& ctx, const AttentionArgs& args) {
  dispatch_float("attention", args.q.dtype(), [&]<class T>(Type<T>) {
    const AttentionTask<T> task(args);
    const size_t bytes = sizeof(Compute<T>) * (kTile * (task.d + 1) + kWarps * task.d);
    allow_shared(max_scores_kernel<T>, bytes);
    const dim3 grid(blocks_for(task.queries, kWarps), task.heads, task.batch);
    max_scores_kernel<T>
        <<<grid, kWarps * 32, bytes, stream_of(ctx)>>>(task, pointer<Compute<T>>(args.max_scores));
  });
  check_launch("attention");
}

}  // namespace megatron::cuda
