#include <optional>

#include "megatron/kernels/cuda/norm.cuh"
#include "megatron/kernels/cuda/shared_memory.cuh"

namespace megatron::cuda {
namespace {

constexpr int kMostThreads = 512;

template <class T>
struct NormBackward {
  Rows x_rows, dy_rows, dsum_rows;
  const T *x, *dy, *dsum, *weight;
  T* dx;
  const Compute<T>*mean, *rstd;
  Compute<T>*dweight, *dbias;  // [blocks, columns]: one partial sum per block
  Compute<T> gamma_offset;
};

// Blocks stay, and take every gridDim.x-th group of rows, one in each line of threads: which rows share a
// partial sum does not change from run to run. The next row is on its way in registers while this one is
// summed.
template <class T, int W, int Items, bool Layer>
__global__ void __launch_bounds__(kMostThreads, Items == 1 ? 2 : 1) norm_backward_kernel(NormBackward<T> a) {
  using C = Compute<T>;
  using Row = RowShape<W, Items>;
  __shared__ C partial[2][Row::kMostRows][32];
  const RowSums<C> sums{partial};
  const int64_t n = a.x_rows.columns, step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  Packed<T, W> gamma[Items];
  C dweight[Items][W] = {}, dbias[Layer ? Items : 1][W] = {};
#pragma unroll
  for (int i = 0; i < Items; ++i)
    if (int64_t column = Row::column(i); a.weight && column < n) gamma[i].put(read<W>(a.weight + column));
  auto scaled = [&](C gradient, T weight) {
    return a.weight ? gradient * (widen(weight) + a.gamma_offset) : gradient;
  };
  let_next_start();
  Packed<T, W> next_x[Items], next_dy[Items], next_dsum[Items];
  C next_mean = 0, next_rstd = 0;
  auto fetch = [&](int64_t from) {
    if (from >= a.x_rows.count) return;
    next_rstd = a.rstd[from];
    if constexpr (Layer) next_mean = a.mean[from];
    const T *x = a.x + a.x_rows.offset(from), *dy = a.dy + a.dy_rows.offset(from);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) next_x[i].put(read<W>(x + Row::column(i)));
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) next_dy[i].put(read<W>(dy + Row::column(i)));
    if (a.dsum) {
      const T* dsum = a.dsum + a.dsum_rows.offset(from);
#pragma unroll
      for (int i = 0; i < Items; ++i)
        if (Row::column(i) < n) next_dsum[i].put(read<W>(dsum + Row::column(i)));
    }
  };
  fetch(row);
  for (int turn = 0; row < a.x_rows.count; row += step, turn ^= 1) {
    Packed<T, W> x[Items], dy[Items], dsum[Items];
#pragma unroll
    for (int i = 0; i < Items; ++i) x[i] = next_x[i], dy[i] = next_dy[i], dsum[i] = next_dsum[i];
    const C mean = next_mean, rstd = next_rstd;
    fetch(row + step);
    C along = 0, across = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) {
        Vec<T, W> input = x[i].get(), gradient = dy[i].get(), weight = gamma[i].get();
#pragma unroll
        for (int j = 0; j < W; ++j) {
          C g = widen(gradient.v[j]), part = g * ((widen(input.v[j]) - mean) * rstd);
          dweight[i][j] += part;
          along += scaled(part, weight.v[j]);
          if constexpr (Layer) {
            dbias[i][j] += g;
            across += scaled(g, weight.v[j]);
          }
        }
        x[i].forget();
        dy[i].forget();
        gamma[i].forget();
      }
    if (!a.dx) continue;
    along = sums.sum(along, Layer ? 0 : turn) / C(n);
    if constexpr (Layer) across = sums.sum(across, 1) / C(n);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (int64_t column = Row::column(i); column < n) {
        Vec<T, W> input = x[i].get(), gradient = dy[i].get(), weight = gamma[i].get(), direct = dsum[i].get();
        C dx[W];
#pragma unroll
        for (int j = 0; j < W; ++j) {
          C normed = (widen(input.v[j]) - mean) * rstd;
          dx[j] = rstd * (scaled(widen(gradient.v[j]), weight.v[j]) - across - normed * along);
          if (a.dsum) dx[j] += widen(direct.v[j]);
        }
        store(a.dx + row * n + column, dx);
      }
  }
  // The lines of a block add up in order, each thread's elements as one.
  using Sums = Vec<C, W>;
  auto add_up = [&](C* target, const C(&own)[Items][W]) {
    for (int turn = 0; turn < blockDim.y; ++turn) {
      if (turn == threadIdx.y) {
#pragma unroll
        for (int i = 0; i < Items; ++i)
          if (int64_t column = Row::column(i); column < n) {
            Sums* at = reinterpret_cast<Sums*>(target + blockIdx.x * n + column);
            Sums total{};
            if (turn) total = *at;
#pragma unroll
            for (int j = 0; j < W; ++j) total.v[j] += own[i][j];
            *at = total;
          }
      }
      if (blockDim.y > 1) __syncthreads();
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
  wait_for_last();
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
  auto fits = [&]<int W, int Items>(RowShape<W, Items>) {
    int64_t threads = blocks_for((n + W - 1) / W, 32 * Items) * 32;
    if (threads > (Items == 1 ? kMostThreads / 2 : kMostThreads)) return false;
    auto kernel = args.kind == NormKind::Layer ? norm_backward_kernel<T, W, Items, true>
                                               : norm_backward_kernel<T, W, Items, false>;
    dim3 block(static_cast<unsigned>(threads), threads <= 128 ? RowShape<W, Items>::kMostRows : 1);
    // As many blocks as the GPU holds at once: each makes one partial sum of the weights' gradients.
    blocks = resident_blocks(ctx, kernel, block, 0, blocks_for(rows, block.y));
    scratch.emplace(ctx, static_cast<size_t>(blocks * n) * sizeof(C) * 2);
    if (args.dweight) a.dweight = scratch->as<C>();
    if (args.dbias) a.dbias = scratch->as<C>() + blocks * n;
    kernel<<<static_cast<unsigned>(blocks), block, 0, stream>>>(a);
    return true;
  };
  auto choose = [&]<int W>(std::integral_constant<int, W>) {
    constexpr int most = W == 1 ? 16 : 8;
    bool done = false;
    if constexpr (W > 1) done = fits(RowShape<W, 1>{}) || fits(RowShape<W, 2>{});
    done = done || fits(RowShape<W, 4>{}) || fits(RowShape<W, most>{});
    require(done, "norm_backward: a row of {} elements is too long for the CUDA kernel; {} is the most", n,
            RowShape<W, most>::columns(kMostThreads));
  };
  if (vector)
    choose(std::integral_constant<int, kVector<T>>{});
  else
    choose(std::integral_constant<int, 1>{});
  check_launch("norm_backward");
  auto join = [&](const C* partial, const Tensor& target) {
    if (!partial) return;
    launch_early("norm_backward", join_partials_kernel<C>, blocks_for(n, kColumns), dim3(kColumns, kParts),
                 stream, partial, blocks, n, any_float(target), args.accumulate);
  };
  join(a.dweight, args.dweight);
  join(a.dbias, args.dbias);
}

}  // namespace

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args) {
  dispatch_float("norm_backward", args.x.dtype(), [&]<class T>(Type<T>) { run<T>(ctx, args); });
}

}  // namespace megatron::cuda
