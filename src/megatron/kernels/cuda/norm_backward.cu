#include <optional>

#include "megatron/kernels/cuda/norm.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct NormBackward {
  Rows x_rows, dy_rows, dsum_rows;
  const T *x, *dy, *dsum, *weight;
  T* dx;
  const Compute<T>*mean, *rstd;
  Compute<T>*dweight, *dbias;  // [blocks, columns]: one partial sum per block
  Compute<T> gamma_offset;
};

// Each block takes every gridDim.x-th row (or group of rows, one per warp), so that which rows share a
// partial sum does not change from run to run.
template <class T, int W, int Items, bool Warp, bool Layer>
__global__ void __launch_bounds__(RowShape<W, Items, Warp>::kThreads)
    norm_backward_kernel(NormBackward<T> a) {
  using C = Compute<T>;
  using Row = RowShape<W, Items, Warp>;
  using Ring = RowRing<T, W, Items, Warp, 3>;
  extern __shared__ __align__(16) char memory[];
  const Ring ring{memory};
  const int64_t n = a.x_rows.columns, step = static_cast<int64_t>(gridDim.x) * Row::kRows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y;
  auto x_of = [&](int64_t row) { return a.x + a.x_rows.offset(row); };
  auto dy_of = [&](int64_t row) { return a.dy + a.dy_rows.offset(row); };
  auto dsum_of = [&](int64_t row) { return a.dsum ? a.dsum + a.dsum_rows.offset(row) : nullptr; };
  auto fetch = [&](int64_t row, int stage) {
    if (row < a.x_rows.count) {
      ring.fetch(stage, 0, x_of(row), n);
      ring.fetch(stage, 1, dy_of(row), n);
      ring.fetch(stage, 2, dsum_of(row), n);
    }
    commit_copies();
  };
  if constexpr (Ring::kUsed)
    for (int s = 0; s < Ring::kStages - 1; ++s) fetch(first + s * step, s);
  C dweight[Items][W] = {}, dbias[Layer ? Items : 1][W] = {};
  int stage = 0;
  for (int64_t row = first; row < a.x_rows.count; row += step) {
    if constexpr (Ring::kUsed) {
      fetch(row + (Ring::kStages - 1) * step, (stage + Ring::kStages - 1) % Ring::kStages);
      wait_copies<Ring::kStages - 1>();
    }
    const T *x = x_of(row), *dy = dy_of(row), *dsum = dsum_of(row);
    const C mean = Layer ? a.mean[row] : C(0), rstd = a.rstd[row];
    C along = 0, across = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (int64_t column = Row::column(i); column < n) {
        C gamma[W];
        if (a.weight) load(gamma, a.weight + column);
        Vec<T, W> input = ring.read(stage, 0, i, x), grad = ring.read(stage, 1, i, dy);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          C normed = (widen(input.v[j]) - mean) * rstd, g = widen(grad.v[j]);
          dweight[i][j] += g * normed;
          if constexpr (Layer) dbias[i][j] += g;
          if (a.weight) g *= gamma[j] + a.gamma_offset;
          along += g * normed;
          if constexpr (Layer) across += g;
        }
      }
    if (a.dx) {
      along = Row::sum(along) / C(n);
      if constexpr (Layer) across = Row::sum(across) / C(n);
#pragma unroll
      for (int i = 0; i < Items; ++i)
        if (int64_t column = Row::column(i); column < n) {
          C gamma[W], dx[W];
          if (a.weight) load(gamma, a.weight + column);
          Vec<T, W> input = ring.read(stage, 0, i, x), grad = ring.read(stage, 1, i, dy), direct;
          if (dsum) direct = ring.read(stage, 2, i, dsum);
#pragma unroll
          for (int j = 0; j < W; ++j) {
            C normed = (widen(input.v[j]) - mean) * rstd, g = widen(grad.v[j]);
            if (a.weight) g *= gamma[j] + a.gamma_offset;
            dx[j] = rstd * (g - across - normed * along);
            if (dsum) dx[j] += widen(direct.v[j]);
          }
          store(a.dx + row * n + column, dx);
        }
    }
    stage = (stage + 1) % Ring::kStages;
  }
  // The rows of a block add up in order, each thread's elements as one.
  using Sums = Vec<C, W>;
  auto add_up = [&](C* target, const C(&own)[Items][W]) {
    for (int turn = 0; turn < Row::kRows; ++turn) {
      if (turn == threadIdx.y)
#pragma unroll
        for (int i = 0; i < Items; ++i)
          if (int64_t column = Row::column(i); column < n) {
            Sums* at = reinterpret_cast<Sums*>(target + blockIdx.x * n + column);
            Sums sums{};
            if (turn) sums = *at;
#pragma unroll
            for (int j = 0; j < W; ++j) sums.v[j] += own[i][j];
            *at = sums;
          }
      if constexpr (Row::kRows > 1) __syncthreads();
    }
  };
  if (a.dweight) add_up(a.dweight, dweight);
  if constexpr (Layer)
    if (a.dbias) add_up(a.dbias, dbias);
}

// target[column] (+)= Σ over blocks, each thread a part of them, then the parts in order.
constexpr int kColumns = 32, kParts = 32;

template <class C>
__global__ void join_partials_kernel(const C* partial, int64_t blocks, int64_t n, AnyFloat target,
                                     bool accumulate) {
  __shared__ C parts[kParts][kColumns];
  int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  C sum = 0;
  if (column < n)
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < blocks; b += kParts) sum += partial[b * n + column];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= n) return;
  for (int p = 1; p < kParts; ++p) sum += parts[p][threadIdx.x];
  target.set(column, accumulate ? C(target.get(column)) + sum : sum);
}

template <class T>
void run(const KernelContext& ctx, const NormBackwardArgs& args) {
  using C = Compute<T>;
  NormBackward<T> a{rows_of(args.x),
                    rows_of(args.dy),
                    rows_of(args.dsum),
                    pointer<T>(args.x),
                    pointer<T>(args.dy),
                    pointer<T>(args.dsum),
                    pointer<T>(args.weight),
                    pointer<T>(args.dx),
                    pointer<C>(args.mean),
                    pointer<C>(args.rstd),
                    nullptr,
                    nullptr,
                    args.zero_centered ? C(1) : C(0)};
  int64_t n = a.x_rows.columns, rows = a.x_rows.count;
  if (n == 0) return;
  bool vector = n % kVector<T> == 0 && a.x_rows.aligned_rows(a.x, sizeof(T)) &&
                a.dy_rows.aligned_rows(a.dy, sizeof(T)) &&
                (!a.dsum || a.dsum_rows.aligned_rows(a.dsum, sizeof(T))) && aligned(a.weight) &&
                aligned(a.dx);
  cudaStream_t stream = stream_of(ctx);
  int64_t blocks = 0;
  std::optional<Scratch> scratch;
  dispatch_row<T>("norm_backward", n, vector,
                  [&]<int W, int Items, bool Warp>(RowShape<W, Items, Warp> shape, dim3 block) {
                    auto kernel = args.kind == NormKind::Layer
                                      ? norm_backward_kernel<T, W, Items, Warp, true>
                                      : norm_backward_kernel<T, W, Items, Warp, false>;
                    // As many blocks as the GPU holds at once: each makes one partial sum of the weights'
                    // gradients.
                    size_t bytes = RowRing<T, W, Items, Warp, 3>::bytes(block);
                    blocks = resident_blocks(ctx, kernel, block, bytes, blocks_for(rows, shape.kRows));
                    scratch.emplace(ctx, static_cast<size_t>(blocks * n) * sizeof(C) * 2);
                    if (args.dweight) a.dweight = scratch->as<C>();
                    if (args.dbias) a.dbias = scratch->as<C>() + blocks * n;
                    kernel<<<static_cast<unsigned>(blocks), block, bytes, stream>>>(a);
                  });
  check_launch("norm_backward");
  auto join = [&](const C* partial, const Tensor& target) {
    if (!partial) return;
    join_partials_kernel<C><<<blocks_for(n, kColumns), dim3(kColumns, kParts), 0, stream>>>(
        partial, blocks, n, any_float(target), args.accumulate);
    check_launch("norm_backward");
  };
  join(a.dweight, args.dweight);
  join(a.dbias, args.dbias);
}

}  // namespace

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args) {
  dispatch_float("norm_backward", args.x.dtype(), [&]<class T>(Type<T>) { run<T>(ctx, args); });
}

}  // namespace megatron::cuda
