#include "megatron/kernels/cuda/recurrent/delta_mma.cuh"

namespace megatron::cuda {
namespace {

// A warp per token, key head and one of q and k.
template <class T>
__global__ void __launch_bounds__(kThreads) unit_kernel(DeltaTask<T> task) {
  using C = Compute<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= 2 * task.sequences.tokens * task.key_heads) return;
  const bool key = row % 2;
  const int64_t at = row / 2, t = at / task.key_heads, head = at - t * task.key_heads;
  const int lane = threadIdx.x % 32;
  const T* in = task.qkv + t * task.stride + ((key ? task.key_heads : 0) + head) * task.keys;
  C squares = 0;
  for (int i = lane; i < task.keys; i += 32) squares += widen(in[i]) * widen(in[i]);
  const C length = sqrt(warp_sum(squares) + task.epsilon), scale = key ? C(1) : task.query_scale;
  C* out = (key ? task.k : task.q) + at * task.keys;
  for (int i = lane; i < task.keys; i += 32) out[i] = widen(in[i]) / length * scale;
  if (lane == 0) (key ? task.k_length : task.q_length)[at] = length;
}

template <class T>
struct GateOp {
  DeltaTask<T> task;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t t = i / task.value_heads, head = i - t * task.value_heads;
    task.decay[i] = exp_of(task.rate(head) * softplus(task.raw(t, head)));
    task.beta[i] = sigmoid<false>(widen(task.b_in[t * task.b_stride + head]));
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kStateThreads) forward_kernel(DeltaTask<T> task, T* o) {
  using C = Compute<T>;
  const int column = blockIdx.x * kStateColumns + threadIdx.x / kStateLanes;
  const int lane = threadIdx.x % kStateLanes;
  const int64_t head = blockIdx.y;
  for (int64_t s = blockIdx.z; s < task.sequences.count; s += gridDim.z) {
    const TokenSpan span = task.sequences.span(s);
    if (span.begin == span.end) continue;
    const int64_t first = task.sequences.first_slot(s, task.chunk);
    C state[N] = {};
    if (task.carried && column < task.values) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (int channel = state_channel(i); channel < task.keys)
          state[i] = task.carried_state(s, head)[channel * task.values + column];
    }
    DeltaToken<T, N> next;
    next.load(task, span.begin, head, column);
    for (int64_t t = span.begin; t < span.end; ++t) {
      const DeltaToken<T, N> token = next;
      next.load(task, min(t + 1, span.end - 1), head, column);
      if (task.before && (t - span.begin) % task.chunk == 0 && column < task.values) {
        C* saved = task.state_before(first + (t - span.begin) / task.chunk, head);
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (int channel = state_channel(i); channel < task.keys)
            saved[channel * task.values + column] = state[i];
      }
      token.advance(state);
      C out = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) out += state[i] * token.q[i];
      out = lane_sum(out);
      if (lane == 0 && column < task.values)
        o[(t * task.value_heads + head) * task.values + column] = narrow<T>(out);
    }
    if (task.carried && column < task.values) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (int channel = state_channel(i); channel < task.keys)
          task.carried_state(s, head)[channel * task.values + column] = state[i];
    }
  }
}

void delta_rule(const KernelContext& ctx, const DeltaRuleArgs& args) {
  if (args.o.numel() == 0) return;
  dispatch_float("delta_rule", args.qkv.dtype(), [&]<class T>(Type<T>) {
    DeltaTask<T> task(args);
    if constexpr (std::is_same_v<T, bfloat>)
      if (!args.state && fits_delta_tiles(task))
        return delta_rule_on_tensor_cores(ctx, task, pointer<T>(args.o));
    Scratch scratch(ctx, task.scratch_bytes());
    task.use(scratch.as<Compute<T>>());
    prepare_delta_rule(ctx, task);
    dispatch_keys(task.keys, [&]<int N>(std::integral_constant<int, N>) {
      dim3 grid(blocks_for(task.values, kStateColumns), task.value_heads,
                static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
      forward_kernel<T, N><<<grid, kStateThreads, 0, stream_of(ctx)>>>(task, pointer<T>(args.o));
    });
    check_launch("delta_rule");
  });
}

}  // namespace

template <class T>
void prepare_delta_rule(const KernelContext& ctx, const DeltaTask<T>& task) {
  const int64_t rows = 2 * task.sequences.tokens * task.key_heads;
  unit_kernel<T><<<blocks_for(rows, kThreads / 32), kThreads, 0, stream_of(ctx)>>>(task);
  check_launch("delta_rule");
  for_each<1>(ctx, "delta_rule", task.sequences.tokens * task.value_heads, false, GateOp<T>{task});
}

template void prepare_delta_rule(const KernelContext&, const DeltaTask<double>&);
template void prepare_delta_rule(const KernelContext&, const DeltaTask<float>&);
template void prepare_delta_rule(const KernelContext&, const DeltaTask<bfloat>&);
template void prepare_delta_rule(const KernelContext&, const DeltaTask<half>&);

void add_delta_rule_kernels(KernelTable& table) {
  table.delta_rule = delta_rule;
  table.delta_rule_backward = delta_rule_backward;
}

}  // namespace megatron::cuda
