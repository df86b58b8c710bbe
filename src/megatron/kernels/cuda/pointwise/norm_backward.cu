#include <optional>

#include "megatron/kernels/cuda/core/reduce_partials.cuh"
#include "megatron/kernels/cuda/core/shared_memory.cuh"
#include "megatron/kernels/cuda/pointwise/norm.cuh"
#include "megatron/kernels/limits/norm.h"

namespace megatron::cuda {
namespace {

// Threads of a block. Those with one vector each are kept to fewer registers, so that two blocks share a
// SM.
template <int Items>
constexpr int kMaxThreads = Items == 1 ? 384 : limits::kNormThreads;

template <class T>
struct NormBackward {
  Rows x_rows, dy_rows, dsum_rows;
  const T *x, *dy, *dsum, *weight;
  T* dx;
  const Compute<T>*mean, *rstd;
  Compute<T>*dweight, *dbias;  // [blocks, columns]: one partial sum per block
  Compute<T> gamma_offset;
};

// Blocks stay, and take every gridDim.x-th group of rows, one in each row group of threads: which rows share
// a partial sum does not change from run to run. The next row is on its way in registers while this one is
// summed.
template <class T, int W, int Items, bool Layer, int Lanes = 0>
__global__ void __launch_bounds__(kMaxThreads<Items>, Items == 1 ? 2 : 1)
    norm_backward_kernel(NormBackward<T> a) {
  using C = Compute<T>;
  using Row = RowShape<W, Items, Lanes>;
  __shared__ C partial[2][Row::kMaxRows][32];
  const RowSums<C, Lanes> sums{partial};
  const int n = static_cast<int>(a.x_rows.columns);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  C dweight[Items][W] = {}, dbias[Layer ? Items : 1][W] = {};
  constexpr bool kWide = Items <= 2;  // the weight as it is used, where there are registers for it
  Packed<T, W> packed[kWide ? 1 : Items];
  C wide[kWide ? Items : 1][W];
  auto finish = [&](C(&gamma)[W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) gamma[j] = a.weight ? gamma[j] + a.gamma_offset : C(1);
  };
#pragma unroll
  for (int i = 0; i < Items; ++i) {
    const int column = Row::column(i);
    if constexpr (kWide) {
      if (a.weight && column < n) load(wide[i], a.weight + column);
      finish(wide[i]);
    } else if (a.weight && column < n) {
      packed[i].put(read<W>(a.weight + column));
    }
  }
  auto gamma_of = [&](int i, C(&gamma)[W]) {
    if constexpr (kWide) {
#pragma unroll
      for (int j = 0; j < W; ++j) gamma[j] = wide[i][j];
    } else {
      packed[i].widened(gamma);
      packed[i].forget();
      finish(gamma);
    }
  };
  griddep_launch();
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
    const C mean = Layer ? next_mean : C(0), rstd = next_rstd;
    fetch(row + step);
    // With g = rstd · dy and c = x − mean: the weight's gradient is Σ g · c over rows, and dx = g · gamma −
    // ⟨g · gamma⟩ − rstd² · c · ⟨g · gamma · c⟩, where ⟨⟩ is the mean over the row.
    C along = 0, across = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (Row::column(i) < n) {
        C input[W], gradient[W], gamma[W];
        x[i].widened(input);
        dy[i].widened(gradient);
        gamma_of(i, gamma);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const C centered = input[j] - mean, g = gradient[j] * rstd, weighted = g * gamma[j];
          dweight[i][j] += g * centered;
          along += weighted * centered;
          if constexpr (Layer) {
            dbias[i][j] += gradient[j];
            across += weighted;
          }
        }
        x[i].forget();
        dy[i].forget();
      }
    if (!a.dx) continue;
    along = sums.sum(along, Layer ? 0 : turn) * rstd * rstd / C(n);
    if constexpr (Layer) across = sums.sum(across, 1) / C(n);
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (const int column = Row::column(i); column < n) {
        C input[W], gradient[W], gamma[W], dx[W];
        x[i].widened(input);
        dy[i].widened(gradient);
        gamma_of(i, gamma);
        if (a.dsum) dsum[i].widened(dx);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const C direct = a.dsum ? dx[j] : C(0);
          dx[j] = gradient[j] * rstd * gamma[j] + (direct - across - along * (input[j] - mean));
        }
        store(a.dx + row * n + column, dx);
      }
  }
  // The row groups of a block add up in order, each thread's elements as one.
  using Sums = Vec<C, W>;
  auto add_up = [&](C* target, const C(&own)[Items][W]) {
    for (int turn = 0; turn < blockDim.y; ++turn) {
      if (turn == threadIdx.y) {
#pragma unroll
        for (int i = 0; i < Items; ++i)
          if (const int column = Row::column(i); column < n) {
            Sums* at = reinterpret_cast<Sums*>(target + static_cast<int64_t>(blockIdx.x) * n + column);
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

template <class C>
struct PutGradient {
  AnyFloat target;
  bool accumulate;

  __device__ void operator()(int64_t column, C sum) const {
    target.set(column, accumulate ? C(target.get(column)) + sum : sum);
  }
};

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
  cudaStream_t stream = stream_of(ctx);
  int64_t blocks = 0;
  std::optional<Scratch> scratch;
  const auto launch = [&](auto kernel, dim3 block) {
    // As many blocks as the GPU holds at once: each makes one partial sum of the weights' gradients.
    blocks = resident_blocks(ctx, kernel, block, 0, blocks_for(rows, block.y));
    scratch.emplace(ctx, static_cast<size_t>(blocks * n) * sizeof(C) * 2);
    if (args.dweight) a.dweight = scratch->as<C>();
    if (args.dbias) a.dbias = scratch->as<C>() + blocks * n;
    kernel<<<static_cast<unsigned>(blocks), block, 0, stream>>>(a);
    return true;
  };
  auto fits = [&]<int W, int Items>(RowShape<W, Items>) {
    int64_t threads = blocks_for((n + W - 1) / W, 32 * Items) * 32;
    // Rows of four warps are faster as two warps with two vectors a thread.
    if (threads > (Items == 1 ? 96 : kMaxThreads<Items>)) return false;
    auto kernel = args.kind == NormKind::Layer ? norm_backward_kernel<T, W, Items, true>
                                               : norm_backward_kernel<T, W, Items, false>;
    // Rows side by side make a block of some hundred threads.
    const int64_t together = kMaxThreads<Items> / (Items == 1 ? 1 : 2) / threads;
    dim3 block(static_cast<unsigned>(threads),
               static_cast<unsigned>(std::clamp<int64_t>(together, 1, RowShape<W, Items>::kMaxRows)));
    return launch(kernel, block);
  };
  auto choose = [&]<int W>(std::integral_constant<int, W>) {
    constexpr int most = W == 1 ? limits::kNormElements : limits::kNormVectors;
    bool done = false;
    if constexpr (sizeof(T) == 2 && W > 1)
      if (two_rows_fill_a_warp(a.x_rows, W))
        done = launch(args.kind == NormKind::Layer ? norm_backward_kernel<T, W, 1, true, kHalfWarp>
                                                   : norm_backward_kernel<T, W, 1, false, kHalfWarp>,
                      dim3(kHalfWarp, 16));
    if constexpr (W > 1) done = done || fits(RowShape<W, 1>{}) || fits(RowShape<W, 2>{});
    done = done || fits(RowShape<W, 4>{}) || fits(RowShape<W, most>{});
    require(done, "norm_backward: no kernel holds a row of {} elements", n);
  };
  if (limits::in_vectors(args))
    choose(std::integral_constant<int, kVector<T>>{});
  else
    choose(std::integral_constant<int, 1>{});
  check_launch("norm_backward");
  auto join = [&](const C* partial, const Tensor& target) {
    if (!partial) return;
    reduce_partials("norm_backward", stream, partial, blocks, n,
                    PutGradient<C>{any_float(target), args.accumulate});
  };
  join(a.dweight, args.dweight);
  join(a.dbias, args.dbias);
}

}  // namespace

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args) {
  dispatch_float("norm_backward", args.x.dtype(), [&]<class T>(Type<T>) { run<T>(ctx, args); });
}

}  // namespace megatron::cuda
