#include "megatron/kernels/argmax.h"

#include <limits>

#include "megatron/kernels/cuda/core/last_block.cuh"
#include "megatron/kernels/cuda/pointwise/index.cuh"
#include "megatron/kernels/limits/grid.h"

namespace megatron::cuda {
namespace {

template <class C>
__device__ Candidate<C> block_largest(Candidate<C> best) {
  __shared__ Candidate<C> partial[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  best = warp_best(best);
  if (lane == 0) partial[warp] = best;
  __syncthreads();
  return warp_best(lane < kThreads / 32 ? partial[lane] : Candidate<C>{C(0), -1});
}

template <class C>
__device__ int64_t found(const Candidate<C>& best) {
  return best.value - best.value == C(0) ? best.index : -1;  // not of infinities
}

// Grid: (parts of a row, rows). The last of a row's parts, at most 32, looks at the candidates of all.
template <class T, int W>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const T* x, int64_t stride, int64_t n, Candidate<Compute<T>>* candidates, uint32_t* arrived,
                  int64_t* indices) {
  using C = Compute<T>;
  griddep_overlap();
  const T* row = x + blockIdx.y * stride;
  Candidate<C> best{C(0), -1};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * W;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W; i < n; i += step) {
    const Vec<T, W> values = read<W>(row + i);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C value = widen(values.v[j]);
      if (value == value && (best.index < 0 || value > best.value)) best = {value, i + j};
    }
  }
  best = block_largest(best);
  if (gridDim.x > 1) {
    Candidate<C>* const own = candidates + blockIdx.y * gridDim.x;
    if (threadIdx.x == 0) own[blockIdx.x] = best;
    if (!last_to_arrive(arrived + blockIdx.y, gridDim.x) || threadIdx.x >= 32) return;
    best = {C(0), -1};
    if (threadIdx.x < gridDim.x) best = {__ldcg(&own[threadIdx.x].value), __ldcg(&own[threadIdx.x].index)};
    best = warp_best(best);
  }
  if (threadIdx.x == 0) indices[blockIdx.y] = found(best);
}

template <class T, int W>
void launch(const KernelContext& ctx, const ArgmaxArgs& args) {
  using C = Compute<T>;
  const int64_t rows = args.x.size(0), n = args.x.size(1);
  // Enough blocks for the whole GPU, with some vectors for each thread.
  const int64_t wanted = std::max<int64_t>(1, 2 * runtime_of(ctx).properties().sm_count / rows),
                useful = std::max<int64_t>(1, n / (kThreads * W * 4));
  uint32_t* const arrived = arrival_counters(ctx, rows);
  const auto parts = static_cast<unsigned>(arrived ? std::min<int64_t>({wanted, useful, 32}) : 1);
  const Scratch candidates(ctx, parts > 1 ? static_cast<size_t>(rows) * parts * sizeof(Candidate<C>) : 0);
  step_launch(ctx, "argmax", dim3(parts, static_cast<unsigned>(rows)), kThreads)
      .run(argmax_kernel<T, W>, pointer<T>(args.x), args.x.stride(0), n, candidates.as<Candidate<C>>(),
           arrived, pointer<int64_t>(args.indices));
}

bool argmax(const KernelContext& ctx, const ArgmaxArgs& args) {
  if (args.x.size(0) > limits::kGridRows || args.x.stride(1) != 1 || args.x.size(1) == 0) return false;
  if (args.x.size(0) == 0) return true;
  dispatch_float("argmax", args.x.dtype(), [&]<class T>(Type<T>) {
    constexpr int W = kVector<T>;
    if (args.x.size(1) % W == 0 && args.x.stride(0) % W == 0 && aligned(args.x.raw()))
      launch<T, W>(ctx, args);
    else
      launch<T, 1>(ctx, args);
  });
  return true;
}

}  // namespace

void add_argmax_kernels(KernelTable& table) { table.argmax = argmax; }

}  // namespace megatron::cuda
