#include "megatron/kernels/cuda/norm.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct NormForward {
  Rows x_rows, residual_rows;
  const T *x, *residual, *weight, *bias;
  T *y, *sum;
  Compute<T>*mean, *rstd;
  Compute<T> epsilon, gamma_offset;
  bool layer;
};

// Blocks stay, and take every gridDim.x-th row (or group of rows, one per warp).
template <class T, int W, int Items, bool Warp>
__global__ void __launch_bounds__(RowShape<W, Items, Warp>::kThreads) norm_forward_kernel(NormForward<T> a) {
  using C = Compute<T>;
  using Row = RowShape<W, Items, Warp>;
  using Ring = RowRing<T, W, Items, Warp, 2>;
  extern __shared__ __align__(16) char memory[];
  const Ring ring{memory};
  const int64_t n = a.x_rows.columns, step = static_cast<int64_t>(gridDim.x) * Row::kRows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y;
  auto x_of = [&](int64_t row) { return a.x + a.x_rows.offset(row); };
  auto residual_of = [&](int64_t row) {
    return a.residual ? a.residual + a.residual_rows.offset(row) : nullptr;
  };
  auto fetch = [&](int64_t row, int stage) {
    if (row < a.x_rows.count) {
      ring.fetch(stage, 0, x_of(row), n);
      ring.fetch(stage, 1, residual_of(row), n);
    }
    commit_copies();
  };
  if constexpr (Ring::kUsed)
    for (int s = 0; s < Ring::kStages - 1; ++s) fetch(first + s * step, s);
  int stage = 0;
  for (int64_t row = first; row < a.x_rows.count; row += step) {
    if constexpr (Ring::kUsed) {
      fetch(row + (Ring::kStages - 1) * step, (stage + Ring::kStages - 1) % Ring::kStages);
      wait_copies<Ring::kStages - 1>();
    }
    const T *x = x_of(row), *residual = residual_of(row);
    Vec<T, W> value[Items];
    C total = 0;
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (int64_t column = Row::column(i); column < n) {
        value[i] = ring.read(stage, 0, i, x);
        if (residual) {
          // Statistics are those of the rounded sum, which the backward pass will see.
          Vec<T, W> other = ring.read(stage, 1, i, residual);
#pragma unroll
          for (int j = 0; j < W; ++j) value[i].v[j] = narrow<T>(widen(value[i].v[j]) + widen(other.v[j]));
          write(a.sum + row * n + column, value[i]);
        }
#pragma unroll
        for (int j = 0; j < W; ++j) {
          C v = widen(value[i].v[j]);
          total += a.layer ? v : v * v;
        }
      }
    total = Row::sum(total);
    C mean = 0;
    if (a.layer) {
      mean = total / C(n);
      total = 0;
#pragma unroll
      for (int i = 0; i < Items; ++i)
        if (Row::column(i) < n)
#pragma unroll
          for (int j = 0; j < W; ++j) {
            C centred = widen(value[i].v[j]) - mean;
            total += centred * centred;
          }
      total = Row::sum(total);
    }
    C rstd = C(1) / sqrt(total / C(n) + a.epsilon);
    if (threadIdx.x == 0) {
      if (a.mean) a.mean[row] = mean;
      if (a.rstd) a.rstd[row] = rstd;
    }
#pragma unroll
    for (int i = 0; i < Items; ++i)
      if (int64_t column = Row::column(i); column < n) {
        C gamma[W], beta[W], y[W];
        if (a.weight) load(gamma, a.weight + column);
        if (a.bias) load(beta, a.bias + column);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          y[j] = (widen(value[i].v[j]) - mean) * rstd;
          if (a.weight) y[j] *= gamma[j] + a.gamma_offset;
          if (a.bias) y[j] += beta[j];
        }
        store(a.y + row * n + column, y);
      }
    stage = (stage + 1) % Ring::kStages;
  }
}

template <class T>
void norm_forward(const KernelContext& ctx, const NormArgs& args) {
  using C = Compute<T>;
  NormForward<T> a{rows_of(args.x),
                   rows_of(args.residual),
                   pointer<T>(args.x),
                   pointer<T>(args.residual),
                   pointer<T>(args.weight),
                   pointer<T>(args.bias),
                   pointer<T>(args.y),
                   pointer<T>(args.sum),
                   pointer<C>(args.mean),
                   pointer<C>(args.rstd),
                   static_cast<C>(args.epsilon),
                   args.zero_centered ? C(1) : C(0),
                   args.kind == NormKind::Layer};
  if (args.x.numel() == 0) return;
  bool vector = a.x_rows.columns % kVector<T> == 0 && a.x_rows.aligned_rows(a.x, sizeof(T)) &&
                (!a.residual || (a.residual_rows.aligned_rows(a.residual, sizeof(T)) && aligned(a.sum))) &&
                aligned(a.weight) && aligned(a.bias) && aligned(a.y);
  cudaStream_t stream = stream_of(ctx);
  dispatch_row<T>("norm", a.x_rows.columns, vector,
                  [&]<int W, int Items, bool Warp>(RowShape<W, Items, Warp> shape, dim3 block) {
                    auto kernel = norm_forward_kernel<T, W, Items, Warp>;
                    size_t bytes = RowRing<T, W, Items, Warp, 2>::bytes(block);
                    int64_t blocks =
                        resident_blocks(ctx, kernel, block, bytes, blocks_for(a.x_rows.count, shape.kRows));
                    kernel<<<static_cast<unsigned>(blocks), block, bytes, stream>>>(a);
                  });
  check_launch("norm");
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
