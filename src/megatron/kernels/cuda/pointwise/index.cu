#include "megatron/kernels/cuda/pointwise/index.cuh"

#include <limits>

#include "megatron/kernels/cuda/pointwise/fp8_rows.h"
#include "megatron/kernels/limits/grid.h"

namespace megatron::cuda {
namespace {

// Vectors of a row that a thread has on their way at once.
constexpr int kGatherAhead = 2;

// out[i] = table[row_of(i)], zero where there is no such row. Columns are counted in units of V; a row
// group of threads takes a part of a row.
template <class V>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const V* table, const int64_t* ids, V* out, int64_t n, int64_t rows, int64_t columns,
                  int64_t stride, int64_t first, int64_t divisor) {
  griddep_overlap();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= n) return;
  const int64_t id = ids[i], row = id < 0 ? -1 : (divisor == 1 ? id : id / divisor) - first;
  const bool inside = row >= 0 && row < rows;
  const int64_t step = blockDim.x, begin = blockIdx.y * step * kGatherAhead + threadIdx.x;
  V held[kGatherAhead];
#pragma unroll
  for (int k = 0; k < kGatherAhead; ++k)
    held[k] = inside && begin + k * step < columns ? table[row * stride + begin + k * step] : V{};
#pragma unroll
  for (int k = 0; k < kGatherAhead; ++k)
    if (begin + k * step < columns) out[i * columns + begin + k * step] = held[k];
}

template <class V>
void launch_gather(const KernelContext& ctx, const Tensor& table, const Tensor& ids, const Tensor& out,
                   int64_t first, int64_t divisor, int64_t columns, int64_t stride) {
  int64_t n = ids.numel();
  int width = std::min(row_threads(columns, kGatherAhead), kThreads);
  dim3 block(width, kThreads / width);
  dim3 grid(blocks_for(n, block.y), blocks_for(columns, int64_t{width} * kGatherAhead));
  require(grid.y <= limits::kGridRows, "gather_rows: a row of {} elements is too long for the CUDA kernel",
          columns);
  step_launch(ctx, "gather_rows", grid, block)
      .run(gather_kernel<V>, pointer<V>(table), pointer<int64_t>(ids), pointer<V>(out), n, table.size(0),
           columns, stride, first, divisor);
}

}  // namespace

void gather(const KernelContext& ctx, const Tensor& table, const Tensor& ids, const Tensor& out,
            int64_t first, int64_t divisor) {
  if (out.numel() == 0) return;
  int64_t element = static_cast<int64_t>(size_of(out.dtype())), columns = out.numel() / ids.numel();
  int64_t row_bytes = columns * element, stride_bytes = table.stride(0) * element;
  void* data = pointer<void>(table);
  if (row_bytes % 16 == 0 && stride_bytes % 16 == 0 && aligned(data) && aligned(out.raw()))
    launch_gather<uint4>(ctx, table, ids, out, first, divisor, row_bytes / 16, stride_bytes / 16);
  else if (element == 8)
    launch_gather<uint64_t>(ctx, table, ids, out, first, divisor, columns, table.stride(0));
  else if (element == 4)
    launch_gather<uint32_t>(ctx, table, ids, out, first, divisor, columns, table.stride(0));
  else if (element == 2)
    launch_gather<uint16_t>(ctx, table, ids, out, first, divisor, columns, table.stride(0));
  else
    launch_gather<uint8_t>(ctx, table, ids, out, first, divisor, columns, table.stride(0));
}

namespace {

void gather_rows(const KernelContext& ctx, const GatherRowsArgs& args) {
  gather(ctx, args.table, args.ids, args.out, args.first, 1);
}

// out[ids[i]] = source[i]; columns and strides are counted in units of V.
template <class V>
struct PutRowsOp {
  const V* source;
  const int64_t* ids;
  V* out;
  int64_t columns, source_stride, out_stride;
  template <int W>
  __device__ void run(int64_t i) const {
    const int64_t row = i / columns, column = i - row * columns;
    out[ids[row] * out_stride + column] = source[row * source_stride + column];
  }
};

template <class V>
void put(const KernelContext& ctx, const PutRowsArgs& args, int64_t columns, int64_t units) {
  for_each<1>(ctx, "put_rows", args.ids.numel() * columns, false,
              PutRowsOp<V>{pointer<V>(args.source), pointer<int64_t>(args.ids), pointer<V>(args.out), columns,
                           args.source.stride(0) / units, args.out.stride(0) / units});
}

void put_rows(const KernelContext& ctx, const PutRowsArgs& args) {
  if (args.source.numel() == 0) return;
  if (args.source.dtype() != args.out.dtype()) return put_fp8_rows(ctx, args);
  const int64_t columns = args.source.numel() / args.ids.numel(),
                element = static_cast<int64_t>(size_of(args.source.dtype())), units = 16 / element;
  const bool vectors = columns % units == 0 && args.source.stride(0) % units == 0 &&
                       args.out.stride(0) % units == 0 && aligned(args.source.raw()) &&
                       aligned(args.out.raw());
  if (vectors) return put<uint4>(ctx, args, columns / units, units);
  if (element == 8) return put<uint64_t>(ctx, args, columns, 1);
  if (element == 4) return put<uint32_t>(ctx, args, columns, 1);
  if (element == 2) return put<uint16_t>(ctx, args, columns, 1);
  put<uint8_t>(ctx, args, columns, 1);
}

template <class T>
struct GatherColumnsOp {
  const T* x;
  const int64_t* indices;
  T* out;
  int64_t n, k;
  template <int W>
  __device__ void run(int64_t i) const {
    out[i] = x[i / k * n + indices[i]];
  }
};

void gather_columns(const KernelContext& ctx, const GatherColumnsArgs& args) {
  dispatch_float("gather_columns", args.x.dtype(), [&]<class T>(Type<T>) {
    for_each<1>(ctx, "gather_columns", args.out.numel(), false,
                GatherColumnsOp<T>{pointer<T>(args.x), pointer<int64_t>(args.indices), pointer<T>(args.out),
                                   args.x.size(1), args.indices.size(1)});
  });
}

// Each element looks for itself among the few indices of its row.
template <class T>
struct ScatterColumnsOp {
  const T* source;
  const int64_t* indices;
  T* out;
  int64_t n, k;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t row = i / n, column = i - row * n;
    T sum = narrow<T>(Compute<T>(0));
    for (int64_t j = row * k; j < (row + 1) * k; ++j)
      if (indices[j] == column) sum = narrow<T>(widen(sum) + widen(source[j]));
    out[i] = sum;
  }
};

void scatter_columns(const KernelContext& ctx, const ScatterColumnsArgs& args) {
  dispatch_float("scatter_columns", args.source.dtype(), [&]<class T>(Type<T>) {
    for_each<1>(ctx, "scatter_columns", args.out.numel(), false,
                ScatterColumnsOp<T>{pointer<T>(args.source), pointer<int64_t>(args.indices),
                                    pointer<T>(args.out), args.out.size(1), args.indices.size(1)});
  });
}

// One block per row. Round r finds the first candidate behind that of round r − 1.
template <class T>
__global__ void top_k_kernel(const T* x, T* values, int64_t* indices, int64_t n, int64_t k) {
  using C = Compute<T>;
  __shared__ Candidate<C> partial[32];
  x += blockIdx.x * n;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  Candidate<C> last{C(0), -1};
  for (int64_t round = 0; round < k; ++round) {
    Candidate<C> best{C(0), -1};
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      Candidate<C> mine{widen(x[i]), i};
      if (round == 0 || last.before(mine)) best = better(best, mine);
    }
    best = warp_best(best);
    if (warps > 1) {
      __syncthreads();
      if (lane == 0) partial[warp] = best;
      __syncthreads();
      best = warp_best(lane < warps ? partial[lane] : Candidate<C>{C(0), -1});
    }
    last = best;
    if (threadIdx.x == 0 && best.index >= 0) {
      values[blockIdx.x * k + round] = x[best.index];
      indices[blockIdx.x * k + round] = best.index;
    }
  }
}

void top_k(const KernelContext& ctx, const TopKArgs& args) {
  int64_t rows = args.x.size(0), n = args.x.size(1), k = args.values.size(1);
  if (rows == 0 || k == 0) return;
  dispatch_float("top_k", args.x.dtype(), [&]<class T>(Type<T>) {
    top_k_kernel<T><<<static_cast<unsigned>(rows), n <= 1024 ? 32 : 1024, 0, stream_of(ctx)>>>(
        pointer<T>(args.x), pointer<T>(args.values), pointer<int64_t>(args.indices), n, k);
  });
  check_launch("top_k");
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table.gather_rows = gather_rows;
  table.scatter_add_rows = scatter_add_rows;
  table.put_rows = put_rows;
  table.gather_columns = gather_columns;
  table.scatter_columns = scatter_columns;
  table.top_k = top_k;
}

}  // namespace megatron::cuda
