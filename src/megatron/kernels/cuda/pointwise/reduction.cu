#include <limits>

#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/limits/grid.h"

namespace megatron::cuda {
namespace {

template <class C>
struct Join {
  Reduction kind;
  __device__ C operator()(C a, C b) const {
    return kind == Reduction::Max ? (a > b ? a : b) : kind == Reduction::Min ? (a < b ? a : b) : a + b;
  }
  __device__ C identity() const {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    return kind == Reduction::Max ? -infinity : kind == Reduction::Min ? infinity : C(0);
  }
};

// x [outer, n, inner]. Each split of n leaves one value per (outer, inner): into `partial` [outer, splits,
// inner], or, when it is the only one, through finish() into out.
template <class T>
struct ReduceTask {
  using C = Compute<T>;
  Join<C> join;
  const T* x;
  C* partial;
  AnyFloat out;
  int64_t n, inner, splits, per_split;
  int64_t mean_of;  // what a mean divides by; 1 for other kinds
  bool accumulate;

  __device__ void finish(int64_t outer, int64_t split, int64_t column, C value) const {
    if (partial) {
      partial[(outer * splits + split) * inner + column] = value;
      return;
    }
    int64_t at = outer * inner + column;
    value /= C(mean_of);
    out.set(at, accumulate ? C(out.get(at)) + value : value);
  }
};

// inner == 1: a block per (outer, split).
template <class T>
__global__ void reduce_rows_kernel(ReduceTask<T> task) {
  using C = Compute<T>;
  int64_t outer = blockIdx.x, split = blockIdx.y;
  int64_t begin = split * task.per_split, end = min(task.n, begin + task.per_split);
  C value = task.join.identity();
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    value = task.join(value, widen(task.x[outer * task.n + i]));
  value = block_reduce(value, task.join, task.join.identity());
  if (threadIdx.x == 0) task.finish(outer, split, 0, value);
}

constexpr int kColumnThreads = 32, kRowThreads = 8;

// inner > 1: 32 · W columns per block; threads along y share the rows, of which each has several on their
// way.
template <class T, int W>
__global__ void __launch_bounds__(kColumnThreads* kRowThreads) reduce_columns_kernel(ReduceTask<T> task) {
  using C = Compute<T>;
  constexpr int kAhead = W > 1 ? 4 : 1, kColumns = kColumnThreads * W;
  __shared__ C shared[kRowThreads][kColumns + 4];
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kColumns, column = column0 + threadIdx.x * W;
  const int64_t split = blockIdx.y, outer = blockIdx.z;
  const int64_t begin = split * task.per_split, end = min(task.n, begin + task.per_split);
  C value[W];
#pragma unroll
  for (int j = 0; j < W; ++j) value[j] = task.join.identity();
  auto take = [&](const Packed<T, W>& raw) {
    C x[W];
    raw.widened(x);
#pragma unroll
    for (int j = 0; j < W; ++j) value[j] = task.join(value[j], x[j]);
  };
  griddep_launch();
  griddep_wait();
  if (column < task.inner) {
    const T* x = task.x + outer * task.n * task.inner + column;
    int64_t r = begin + threadIdx.y;
    for (; r + (kAhead - 1) * kRowThreads < end; r += kAhead * kRowThreads) {
      Packed<T, W> raw[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) raw[a].put(read<W>(x + (r + a * kRowThreads) * task.inner));
#pragma unroll
      for (int a = 0; a < kAhead; ++a) take(raw[a]);
    }
    for (; r < end; r += kRowThreads) {
      Packed<T, W> raw;
      raw.put(read<W>(x + r * task.inner));
      take(raw);
    }
  }
#pragma unroll
  for (int j = 0; j < W; ++j) shared[threadIdx.y][threadIdx.x * W + j] = value[j];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y * kColumnThreads + threadIdx.x); c < kColumns;
       c += kColumnThreads * kRowThreads) {
    if (column0 + c >= task.inner) break;
    C sum = shared[0][c];
#pragma unroll
    for (int r = 1; r < kRowThreads; ++r) sum = task.join(sum, shared[r][c]);
    task.finish(outer, split, column0 + c, sum);
  }
}

// `early`: the partial results of the launch before this one are joined.
template <class T>
void launch_reduce(cudaStream_t stream, const ReduceTask<T>& task, int64_t outer, bool early = false) {
  if (task.inner == 1) {
    dim3 grid(static_cast<unsigned>(outer), static_cast<unsigned>(task.splits));
    reduce_rows_kernel<T><<<grid, row_threads(std::min(task.n, task.per_split), 4), 0, stream>>>(task);
    check_launch("reduce");
    return;
  }
  auto launch = [&]<int W>(std::integral_constant<int, W>) {
    dim3 grid(blocks_for(task.inner, kColumnThreads * W), static_cast<unsigned>(task.splits),
              static_cast<unsigned>(outer));
    dim3 block(kColumnThreads, kRowThreads);
    if (early)
      launch_pdl("reduce", reduce_columns_kernel<T, W>, grid, block, stream, task);
    else
      reduce_columns_kernel<T, W><<<grid, block, 0, stream>>>(task);
    check_launch("reduce");
  };
  constexpr int W = kVector<T>;
  if (task.inner % W == 0 && aligned(task.x))
    launch(std::integral_constant<int, W>{});
  else
    launch(std::integral_constant<int, 1>{});
}

// How many parts n is cut into: enough to fill the GPU, whatever else runs, so that sums are always alike.
int64_t splits_for(int64_t outer, int64_t n, int64_t inner) {
  constexpr int64_t wanted_blocks = 512;
  int64_t blocks = outer * (inner == 1 ? 1 : (inner + 255) / 256), least = inner == 1 ? 4096 : 64;
  return std::clamp<int64_t>(std::min(wanted_blocks / std::max<int64_t>(blocks, 1), n / least), 1, 512);
}

void reduce(const KernelContext& ctx, const ReduceArgs& args) {
  int64_t outer = args.outer, n = args.n, inner = args.inner;
  if (outer == 0 || inner == 0 || (n == 0 && args.accumulate)) return;
  if (inner > 1 && outer > limits::kGridRows) {  // more slices than one launch takes
    const Tensor x = args.x.view({outer, n * inner}), out = args.out.view({outer, inner});
    for (int64_t first = 0; first < outer; first += limits::kGridRows) {
      const int64_t last = std::min(outer, first + limits::kGridRows);
      ReduceArgs part = args;
      part.x = x.slice(0, first, last), part.out = out.slice(0, first, last), part.outer = last - first;
      reduce(ctx, part);
    }
    return;
  }
  cudaStream_t stream = stream_of(ctx);
  if (n == 0) {  // a sum over nothing
    check_cuda(cudaMemsetAsync(args.out.raw(), 0, args.out.bytes(), stream), "zeroing GPU memory");
    return;
  }
  dispatch_float("reduce", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    int64_t splits = splits_for(outer, n, inner), mean_of = args.kind == Reduction::Mean ? n : 1;
    ReduceTask<T> task{{args.kind}, pointer<T>(args.x),        nullptr, any_float(args.out), n, inner,
                       splits,      (n + splits - 1) / splits, mean_of, args.accumulate};
    if (splits == 1) return launch_reduce(stream, task, outer);
    Scratch scratch(ctx, static_cast<size_t>(outer * splits * inner) * sizeof(C));
    task.partial = scratch.as<C>();
    launch_reduce(stream, task, outer);
    ReduceTask<C> joined{{args.kind}, task.partial, nullptr, task.out,       splits, inner,
                         1,           splits,       mean_of, args.accumulate};
    launch_reduce(stream, joined, outer, true);
  });
}

template <class T>
__global__ void softmax_kernel(const T* x, T* y, int64_t n) {
  using C = Compute<T>;
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  C largest = lowest;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) largest = max(largest, widen(x[i]));
  largest = block_reduce(largest, Maximum<C>{}, lowest);
  const C base = largest == lowest ? C(0) : largest;
  C sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += exp_of(widen(x[i]) - base);
  sum = block_sum(sum);
  const C scale = sum == 0 ? C(0) : C(1) / sum;  // zero where everything is masked out
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = narrow<T>(exp_of(widen(x[i]) - base) * scale);
}

template <class T>
__global__ void softmax_backward_kernel(const T* y, const T* dy, T* dx, int64_t n) {
  using C = Compute<T>;
  y += blockIdx.x * n;
  dy += blockIdx.x * n;
  dx += blockIdx.x * n;
  C along = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) along += widen(y[i]) * widen(dy[i]);
  along = block_sum(along);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    dx[i] = narrow<T>(widen(y[i]) * (widen(dy[i]) - along));
}

void softmax(const KernelContext& ctx, const SoftmaxArgs& args) {
  if (args.x.numel() == 0) return;
  int64_t n = args.x.size(-1);
  unsigned rows = static_cast<unsigned>(args.x.numel() / n);
  dispatch_float("softmax", args.x.dtype(), [&]<class T>(Type<T>) {
    softmax_kernel<T>
        <<<rows, row_threads(n, 1), 0, stream_of(ctx)>>>(pointer<T>(args.x), pointer<T>(args.y), n);
  });
  check_launch("softmax");
}

void softmax_backward(const KernelContext& ctx, const SoftmaxBackwardArgs& args) {
  if (args.y.numel() == 0) return;
  int64_t n = args.y.size(-1);
  unsigned rows = static_cast<unsigned>(args.y.numel() / n);
  dispatch_float("softmax_backward", args.y.dtype(), [&]<class T>(Type<T>) {
    softmax_backward_kernel<T><<<rows, row_threads(n, 1), 0, stream_of(ctx)>>>(
        pointer<T>(args.y), pointer<T>(args.dy), pointer<T>(args.dx), n);
  });
  check_launch("softmax_backward");
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
  table.reduce = reduce;
  table.softmax = softmax;
  table.softmax_backward = softmax_backward;
}

}  // namespace megatron::cuda
