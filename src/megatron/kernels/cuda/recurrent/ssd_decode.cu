#include "megatron/kernels/cuda/recurrent/ssd_decode.cuh"

#include "megatron/kernels/limits/recurrent.h"

namespace megatron::cuda {
namespace {

// R ← exp(Δ rate) R + Δ x bᵀ; y = R c + d · x, token by token: sums do not depend on where a step ends.
// A warp carries one row of a state (a channel of a head), N of its elements a lane. Grid: blocks of rows,
// sequences.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) decode_kernel(SsdTask<T> task, Compute<T>* carried, T* y) {
  using C = Compute<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= task.heads * task.channels) return;
  const int64_t head = row / task.channels, group = task.group_of(head);
  const int lane = threadIdx.x % 32, p = static_cast<int>(row - head * task.channels);
  const C rate = task.rate(head), skip = task.d[head];
  for (int64_t s = blockIdx.y; s < task.sequences.count; s += gridDim.y) {
    const TokenSpan span = task.sequences.span(s);
    C* own = carried + task.state_at(s, head) + static_cast<int64_t>(p) * task.states;
    C state[N];
#pragma unroll
    for (int i = 0; i < N; ++i) state[i] = lane + 32 * i < task.states ? own[lane + 32 * i] : C(0);
    for (int64_t t = span.begin; t < span.end; ++t) {
      const C step = min(max(softplus(task.raw_step(t, head)), task.step_min), task.step_max);
      const C decay = exp_of(step * rate), x = task.x(t, head, p);
      C out = 0;
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (int n = lane + 32 * i; n < task.states) {
          state[i] = decay * state[i] + step * x * task.b(t, group, n);
          out += state[i] * task.c(t, group, n);
        }
      out = warp_sum(out);
      if (lane == 0) y[task.at(t, head) * task.channels + p] = narrow<T>(out + skip * x);
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (int n = lane + 32 * i; n < task.states) own[n] = state[i];
  }
}

}  // namespace

template <class T>
void ssd_decode(const KernelContext& ctx, const SsdTask<T>& task, Compute<T>* carried, T* y) {
  const dim3 grid(blocks_for(task.heads * task.channels, kThreads / 32),
                  static_cast<unsigned>(std::min<int64_t>(task.sequences.count, 65535)));
  const auto launch = [&]<int N>(std::integral_constant<int, N>) {
    decode_kernel<T, N><<<grid, kThreads, 0, stream_of(ctx)>>>(task, carried, y);
    check_launch("ssd");
  };
  static_assert(8 * 32 == limits::kDecodedStates);
  if (task.states <= 64) return launch(std::integral_constant<int, 2>{});
  if (task.states <= 128) return launch(std::integral_constant<int, 4>{});
  launch(std::integral_constant<int, 8>{});
}

template void ssd_decode(const KernelContext&, const SsdTask<double>&, double*, double*);
template void ssd_decode(const KernelContext&, const SsdTask<float>&, float*, float*);
template void ssd_decode(const KernelContext&, const SsdTask<bfloat>&, float*, bfloat*);
template void ssd_decode(const KernelContext&, const SsdTask<half>&, float*, half*);

}  // namespace megatron::cuda
