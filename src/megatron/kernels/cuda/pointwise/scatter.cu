#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "megatron/kernels/cuda/pointwise/index.cuh"

namespace megatron::cuda {
namespace {

// Sorting keys: the target row, or `rows` for ids that fall outside, which end up behind all others.
__global__ void scatter_keys_kernel(const int64_t* ids, int64_t first, int64_t rows, int64_t n, int32_t* keys,
                                    int32_t* order) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t row = ids[i] - first;
  keys[i] = static_cast<int32_t>(row >= 0 && row < rows ? row : rows);
  order[i] = static_cast<int32_t>(i);
}

// One block per place in the sorted list and strip of columns; those that stand at the beginning of a run of
// equal keys add the whole run to its row, in the order of the ids. What most runs need, which have one id or
// two, is asked for at once.
template <class S, class T, int W>
__global__ void __launch_bounds__(kThreads)
    scatter_runs_kernel(const S* source, const int32_t* keys, const int32_t* order, T* out, int32_t n,
                        int32_t rows, int64_t columns) {
  const auto begin = static_cast<int32_t>(blockIdx.x);
  const int32_t row = keys[begin], before = begin ? keys[begin - 1] : -1,
                after = begin + 1 < n ? keys[begin + 1] : -1;
  const int64_t first = order[begin];
  if (row >= rows || before == row) return;
  int32_t end = begin + 1;
  if (after == row)  // frequent ids have long runs: their ends are searched for, not walked to
    for (int32_t high = n; end < high;) {
      const int32_t middle = end + (high - end) / 2;
      if (keys[middle] == row)
        end = middle + 1;
      else
        high = middle;
    }
  using C = Compute<T>;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= columns) return;
  C sum[W];
  Compute<S> x[W];
  load(sum, out + row * columns + c);
  load(x, source + first * columns + c);
#pragma unroll
  for (int j = 0; j < W; ++j) sum[j] += static_cast<C>(x[j]);
#pragma unroll 8
  for (int32_t i = begin + 1; i < end; ++i) {
    load(x, source + order[i] * columns + c);
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] += static_cast<C>(x[j]);
  }
  store(out + row * columns + c, sum);
}

// Few rows with many ids each, such as the load of experts: nothing is sorted. Block (x, row) adds the ids of
// its row for the columns of its threads' first dimension; the second shares the ids out, and its sums are
// added as a tree.
constexpr int kLaneThreads = 512;
template <class S, class T, int W>
__global__ void __launch_bounds__(kLaneThreads)
    scatter_few_rows_kernel(const S* source, const int64_t* ids, int64_t first, T* out, int64_t n,
                            int64_t columns) {
  using C = Compute<T>;
  __shared__ C sums[kLaneThreads * W];
  const int64_t row = blockIdx.y, c = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W;
  C sum[W] = {};
  if (c < columns) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < n; i += blockDim.y) {
      Compute<S> x[W];
      load(x, source + i * columns + c);  // read whether it counts or not, so that loads run ahead
      const bool counts = ids[i] - first == row;
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += counts ? static_cast<C>(x[j]) : C(0);
    }
  }
  C* mine = sums + (threadIdx.y * blockDim.x + threadIdx.x) * W;
#pragma unroll
  for (int j = 0; j < W; ++j) mine[j] = sum[j];
  __syncthreads();
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y < half)
#pragma unroll
      for (int j = 0; j < W; ++j) mine[j] += mine[half * blockDim.x * W + j];
    __syncthreads();
  }
  if (threadIdx.y > 0 || c >= columns) return;
  load(sum, out + row * columns + c);
#pragma unroll
  for (int j = 0; j < W; ++j) sum[j] += mine[j];
  store(out + row * columns + c, sum);
}

bool few_rows(int64_t n, int64_t rows) { return rows <= 16 && n >= 64 * rows; }

void scatter_few_rows(const KernelContext& ctx, const ScatterAddRowsArgs& args) {
  const int64_t n = args.ids.numel(), rows = args.out.size(0), columns = args.out.numel() / rows;
  dispatch_float("scatter_add_rows", args.source.dtype(), [&]<class S>(Type<S>) {
    dispatch_float("scatter_add_rows", args.out.dtype(), [&]<class T>(Type<T>) {
      constexpr int W = 16 / static_cast<int>(std::min(sizeof(S), sizeof(T)));  // 16 bytes of the narrower
      const S* source = pointer<S>(args.source);
      T* out = pointer<T>(args.out);
      const bool vector = columns % W == 0 && aligned(source) && aligned(out);
      const int64_t vectors = vector ? columns / W : columns;
      const unsigned wide =
          static_cast<unsigned>(std::min<uint64_t>(8, std::bit_ceil(static_cast<uint64_t>(vectors))));
      const dim3 grid(blocks_for(vectors, wide), static_cast<unsigned>(rows)),
          block(wide, kLaneThreads / wide);
      auto kernel = vector ? scatter_few_rows_kernel<S, T, W> : scatter_few_rows_kernel<S, T, 1>;
      kernel<<<grid, block, 0, stream_of(ctx)>>>(source, pointer<int64_t>(args.ids), args.first, out, n,
                                                 columns);
    });
  });
  check_launch("scatter_add_rows");
}
}  // namespace

void scatter_add_rows(const KernelContext& ctx, const ScatterAddRowsArgs& args) {
  int64_t n = args.ids.numel(), rows = args.out.size(0);
  if (args.out.numel() == 0) return;
  int64_t columns = args.out.numel() / rows;
  cudaStream_t stream = stream_of(ctx);
  if (!args.accumulate)
    check_cuda(cudaMemsetAsync(args.out.raw(), 0, args.out.bytes(), stream), "zeroing GPU memory");
  if (n == 0) return;
  if (few_rows(n, rows)) return scatter_few_rows(ctx, args);
  require(n < INT32_MAX && rows < INT32_MAX, "scatter_add_rows: {} ids into {} rows are too many", n, rows);

  int count = static_cast<int>(n), bits = 1;
  while ((int64_t{1} << bits) <= rows) ++bits;
  size_t list = (static_cast<size_t>(n) * sizeof(int32_t) + 255) / 256 * 256, sort_bytes = 0;
  int32_t* none = nullptr;
  check_cuda(
      cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, none, none, none, count, 0, bits, stream),
      "planning a sort");
  Scratch scratch(ctx, 4 * list + sort_bytes);
  int32_t *keys = scratch.as<int32_t>(), *order = scratch.as<int32_t>(list);
  int32_t *sorted = scratch.as<int32_t>(2 * list), *sorted_order = scratch.as<int32_t>(3 * list);
  scatter_keys_kernel<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(pointer<int64_t>(args.ids),
                                                                        args.first, rows, n, keys, order);
  check_launch("scatter_add_rows");
  check_cuda(cub::DeviceRadixSort::SortPairs(scratch.as<char>(4 * list), sort_bytes, keys, sorted, order,
                                             sorted_order, count, 0, bits, stream),
             "sorting ids");

  dispatch_float("scatter_add_rows", args.source.dtype(), [&]<class S>(Type<S>) {
    dispatch_float("scatter_add_rows", args.out.dtype(), [&]<class T>(Type<T>) {
      constexpr int W = 16 / static_cast<int>(std::min(sizeof(S), sizeof(T)));  // 16 bytes of the narrower
      const S* source = pointer<S>(args.source);
      T* out = pointer<T>(args.out);
      bool vector = columns % W == 0 && aligned(source) && aligned(out);
      const int64_t vectors = vector ? columns / W : columns;
      const auto threads = static_cast<unsigned>(std::min<int64_t>(blocks_for(vectors, 32) * 32, kThreads));
      const dim3 grid(static_cast<unsigned>(n), blocks_for(vectors, threads));
      auto kernel = vector ? scatter_runs_kernel<S, T, W> : scatter_runs_kernel<S, T, 1>;
      kernel<<<grid, threads, 0, stream>>>(source, sorted, sorted_order, out, count,
                                           static_cast<int32_t>(rows), columns);
    });
  });
  check_launch("scatter_add_rows");
}

}  // namespace megatron::cuda
