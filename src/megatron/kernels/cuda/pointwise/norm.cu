#include "megatron/kernels/cuda/pointwise/norm.cuh"
#include "megatron/kernels/limits/norm.h"

namespace megatron::cuda {
namespace {

template <class T>
struct NormForward {
  Rows x_rows, residual_rows;
  const T *x, *residual, *weight, *bias;
  T *y, *sum;
  Compute<T>*mean, *rstd;
  Compute<T> epsilon, gamma_offset;
};

// Input and residual are on their way before the first sum; the weight, which all rows share, is read when it
// is needed, so that more rows fit an SM.
template <class T, int W, int Items, int Max, bool Layer, int Lanes = 0>
__global__ void __launch_bounds__(Max) norm_forward_kernel(NormForward<T> a) {
  using C = Compute<T>;
  using Row = RowShape<W, Items, Lanes>;
  __shared__ C partial[2][Row::kMaxRows][32];
  const RowSums<C, Lanes> sums{partial};
  griddep_overlap();
  const int n = static_cast<int>(a.x_rows.columns);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y, first = row * n;
  if (row >= a.x_rows.count) return;
  Packed<T, W> value[Items];
  const T* x = a.x + a.x_rows.offset(row);
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (Row::column(i) < n) value[i].put(read<W>(x + Row::column(i)));
  if (a.residual) {
    Packed<T, W> other[Items];
    const T* residual = a.residual + a.residual_rows.offset(row);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) other[i].put(read<W>(residual + Row::column(i)));
    // Statistics are those of the rounded sum, which the backward pass will see.
    T* sum = a.sum + first;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (const int column = Row::column(i); column < n) {
        C total[W], added[W];
        value[i].widened(total);
        other[i].widened(added);
#pragma unroll
        for (int j = 0; j < W; ++j) total[j] += added[j];
        value[i].narrowed(total);
        write(sum + column, value[i].get());
      }
  }
  auto total_of = [&](auto term) {
    C total = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) {
        C values[W];
        value[i].widened(values);
#pragma unroll
        for (int j = 0; j < W; ++j) total += term(values[j]);
        value[i].forget();
      }
    return total;
  };
  C mean = 0;
  if constexpr (Layer) mean = sums.sum(total_of([](C v) { return v; }), 0) / C(n);
  const C square = sums.sum(total_of([&](C v) { return (v - mean) * (v - mean); }), 1);
  const C rstd = C(1) / sqrt(square / C(n) + a.epsilon);
  if (threadIdx.x == 0) {
    if (a.mean) a.mean[row] = mean;
    if (a.rstd) a.rstd[row] = rstd;
  }
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (const int column = Row::column(i); column < n) {
      C y[W], gamma[W], beta[W];
      value[i].widened(y);
      if (a.weight) load(gamma, a.weight + column);
      if (a.bias) load(beta, a.bias + column);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        y[j] = (y[j] - mean) * rstd;
        if (a.weight) y[j] *= gamma[j] + a.gamma_offset;
        if (a.bias) y[j] += beta[j];
      }
      store(a.y + first + column, y);
    }
}

// The shape of a row of n elements: few vectors a thread, and rows of one or two warps side by side in a
// block of eight warps.
template <class T, int W, bool Layer>
void launch_forward(const KernelContext& ctx, const NormForward<T>& a) {
  const int64_t n = a.x_rows.columns, vectors = (n + W - 1) / W;
  auto fits = [&]<int Items, int Max>(RowShape<W, Items> shape, std::integral_constant<int, Max>) {
    int64_t threads = blocks_for(vectors, 32 * Items) * 32;
    if (threads > Max) return false;
    if constexpr (Max > 64) {
      step_launch(ctx, "norm", static_cast<unsigned>(a.x_rows.count), static_cast<unsigned>(threads))
          .run(norm_forward_kernel<T, W, Items, Max, Layer>, a);
    } else {
      constexpr unsigned rows = Max == 32 ? 2 * shape.kMaxRows : shape.kMaxRows;
      step_launch(ctx, "norm", blocks_for(a.x_rows.count, rows), dim3(static_cast<unsigned>(threads), rows))
          .run(norm_forward_kernel<T, W, Items, Max * rows, Layer>, a);
    }
    return true;
  };
  if constexpr (sizeof(T) == 2 && W > 1)
    if (two_rows_fill_a_warp(a.x_rows, W)) {
      constexpr unsigned rows = 16;
      return step_launch(ctx, "norm", blocks_for(a.x_rows.count, rows), dim3(kHalfWarp, rows))
          .run(norm_forward_kernel<T, W, 1, kHalfWarp * rows, Layer, kHalfWarp>, a);
    }
  using Warp = std::integral_constant<int, 32>;
  using Two = std::integral_constant<int, 64>;
  using Many = std::integral_constant<int, limits::kNormThreads>;
  bool done = false;
  if constexpr (W > 1)  // rows that do not lie well have fewer shapes, which saves compiling
    done = fits(RowShape<W, 1>{}, Warp{}) || fits(RowShape<W, 2>{}, Warp{}) ||
           fits(RowShape<W, 3>{}, Warp{}) || fits(RowShape<W, 4>{}, Warp{}) ||
           fits(RowShape<W, 3>{}, Two{}) || fits(RowShape<W, 4>{}, Two{});
  using Longest = RowShape<W, W == 1 ? limits::kNormElements : limits::kNormVectors>;
  done = done || fits(RowShape<W, 4>{}, Many{}) || fits(Longest{}, Many{});
  require(done, "norm: no kernel holds a row of {} elements", n);
}

template <class T>
void norm_forward(const KernelContext& ctx, const NormArgs& args) {
  using C = Compute<T>;
  NormForward<T> a{rows_of(args.x),           rows_of(args.residual),       pointer<T>(args.x),
                   pointer<T>(args.residual), pointer<T>(args.weight),      pointer<T>(args.bias),
                   pointer<T>(args.y),        pointer<T>(args.sum),         pointer<C>(args.mean),
                   pointer<C>(args.rstd),     static_cast<C>(args.epsilon), args.zero_centered ? C(1) : C(0)};
  if (args.x.numel() == 0) return;
  auto launch = [&]<int W>(std::integral_constant<int, W>) {
    if (args.kind == NormKind::Layer)
      launch_forward<T, W, true>(ctx, a);
    else
      launch_forward<T, W, false>(ctx, a);
  };
  if (limits::in_vectors(args))
    launch(std::integral_constant<int, kVector<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

void norm(const KernelContext& ctx, const NormArgs& args) {
  dispatch_float("norm", args.x.dtype(), [&]<class T>(Type<T>) { norm_forward<T>(ctx, args); });
}

}  // namespace

void add_norm_kernels(KernelTable& table) {
  table.norm = norm;
  table.norm_backward = norm_backward;
}

}  // namespace megatron::cuda
