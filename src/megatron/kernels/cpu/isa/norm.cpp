#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/rows.h"
#include "megatron/kernels/cpu/isa/scratch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

template <class T>
void norm_forward(const KernelContext& ctx, const NormArgs& args) {
  using C = Compute<T>;
  Rows x_rows = rows_of(args.x), residual_rows;
  if (args.residual.defined()) residual_rows = rows_of(args.residual);
  int64_t n = x_rows.columns;
  const T *x = pointer<T>(args.x), *residual = optional_pointer<T>(args.residual);
  const T *weight = optional_pointer<T>(args.weight), *bias = optional_pointer<T>(args.bias);
  T *y = pointer<T>(args.y), *sum = optional_pointer<T>(args.sum);
  C *means = optional_pointer<C>(args.mean), *rstds = optional_pointer<C>(args.rstd);
  bool layer = args.kind == NormKind::Layer;
  C gamma_offset = args.zero_centered ? C(1) : C(0);

  ctx.pool.parallel_for(
      x_rows.count, std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* in = x + x_rows.offset(row);
          T* out = y + row * n;
          if (residual) {
            // Statistics are those of the rounded sum, which the backward pass will see.
            const T* other = residual + residual_rows.offset(row);
            T* total = sum + row * n;
            for (int64_t j = 0; j < n; ++j) total[j] = T(C(in[j]) + C(other[j]));
            in = total;
          }
          C mean = 0;
          if (layer) mean = sum_over<C>(n, [&](int64_t j) { return C(in[j]); }) / C(n);
          C variance = sum_over<C>(n,
                                   [&](int64_t j) {
                                     C centred = C(in[j]) - mean;
                                     return centred * centred;
                                   }) /
                       C(n);
          C rstd = C(1) / std::sqrt(variance + C(args.epsilon));
          if (means) means[row] = mean;
          if (rstds) rstds[row] = rstd;
          if (!weight) {
            for (int64_t j = 0; j < n; ++j) out[j] = T((C(in[j]) - mean) * rstd);
          } else if (!bias) {
            for (int64_t j = 0; j < n; ++j)
              out[j] = T((C(in[j]) - mean) * rstd * (C(weight[j]) + gamma_offset));
          } else {
            for (int64_t j = 0; j < n; ++j)
              out[j] = T((C(in[j]) - mean) * rstd * (C(weight[j]) + gamma_offset) + C(bias[j]));
          }
        }
      });
}

void norm(const KernelContext& ctx, const NormArgs& args) {
  dispatch_float("norm", args.x.dtype(), [&]<class T>(Type<T>) { norm_forward<T>(ctx, args); });
}

// Rows that share one partial sum of the weights' gradients. It depends on the number of rows alone, so that
// the sums are the same for every number of threads.
int64_t rows_per_partial(int64_t rows) { return std::max<int64_t>(32, (rows + 63) / 64); }

template <class T>
struct BackwardRow {
  using C = Compute<T>;
  const T *dy, *x, *dsum, *weight;
  T* dx;
  int64_t n;
  C mean, rstd, gamma_offset;
  bool layer;

  C gradient(int64_t j) const { return weight ? C(dy[j]) * (C(weight[j]) + gamma_offset) : C(dy[j]); }
  C normed(int64_t j) const { return (C(x[j]) - mean) * rstd; }

  void data() const {
    C along = sum_over<C>(n, [&](int64_t j) { return gradient(j) * normed(j); }) / C(n), across = 0;
    if (layer) across = sum_over<C>(n, [&](int64_t j) { return gradient(j); }) / C(n);
    if (dsum) {
      for (int64_t j = 0; j < n; ++j)
        dx[j] = T(rstd * (gradient(j) - across - normed(j) * along) + C(dsum[j]));
    } else {
      for (int64_t j = 0; j < n; ++j) dx[j] = T(rstd * (gradient(j) - across - normed(j) * along));
    }
  }
};

// target (+)= Σ over blocks of partial[block], in the order of blocks.
template <class C>
void combine(const KernelContext& ctx, const C* partial, int64_t blocks, int64_t stride, int64_t n,
             const Tensor& target, bool accumulate) {
  dispatch_float("norm_backward", target.dtype(), [&]<class G>(Type<G>) {
    G* out = pointer<G>(target);
    ctx.pool.parallel_for(n, kGrain / 16, [&](int64_t begin, int64_t end) {
      constexpr int64_t width = 64;
      for (int64_t first = begin; first < end; first += width) {
        int64_t count = std::min(width, end - first);
        C total[width];
        for (int64_t j = 0; j < count; ++j) total[j] = accumulate ? C(out[first + j]) : C(0);
        for (int64_t b = 0; b < blocks; ++b)
          for (int64_t j = 0; j < count; ++j) total[j] += partial[b * stride + first + j];
        for (int64_t j = 0; j < count; ++j) out[first + j] = G(total[j]);
      }
    });
  });
}

template <class T>
void norm_gradient(const KernelContext& ctx, const NormBackwardArgs& args) {
  using C = Compute<T>;
  Rows x_rows = rows_of(args.x), dy_rows = rows_of(args.dy), dsum_rows;
  if (args.dsum.defined()) dsum_rows = rows_of(args.dsum);
  int64_t n = x_rows.columns, rows = x_rows.count;
  const T *x = pointer<T>(args.x), *dy = pointer<T>(args.dy), *dsum = optional_pointer<T>(args.dsum);
  const T* weight = optional_pointer<T>(args.weight);
  T* dx = optional_pointer<T>(args.dx);
  const C *means = optional_pointer<C>(args.mean), *rstds = pointer<C>(args.rstd);
  bool want_weight = args.dweight.defined(), want_bias = args.dbias.defined();

  int64_t per_block = rows_per_partial(rows), blocks = (rows + per_block - 1) / per_block;
  int64_t stride = (want_weight + want_bias) * n, bias_begin = want_weight ? n : 0;
  Scratch<C> scratch(ctx, blocks * stride);
  C* partial = scratch.data();

  ctx.pool.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      C* sums = partial + block * stride;
      std::fill(sums, sums + stride, C(0));
      for (int64_t row = block * per_block; row < std::min(rows, (block + 1) * per_block); ++row) {
        BackwardRow<T> r{.dy = dy + dy_rows.offset(row),
                         .x = x + x_rows.offset(row),
                         .dsum = dsum ? dsum + dsum_rows.offset(row) : nullptr,
                         .weight = weight,
                         .dx = dx + row * n,
                         .n = n,
                         .mean = means ? means[row] : C(0),
                         .rstd = rstds[row],
                         .gamma_offset = args.zero_centered ? C(1) : C(0),
                         .layer = args.kind == NormKind::Layer};
        if (want_weight)
          for (int64_t j = 0; j < n; ++j) sums[j] += C(r.dy[j]) * r.normed(j);
        if (want_bias)
          for (int64_t j = 0; j < n; ++j) sums[bias_begin + j] += C(r.dy[j]);
        if (dx) r.data();
      }
    }
  });
  if (want_weight) combine(ctx, partial, blocks, stride, n, args.dweight, args.accumulate);
  if (want_bias) combine(ctx, partial + bias_begin, blocks, stride, n, args.dbias, args.accumulate);
}

void norm_backward(const KernelContext& ctx, const NormBackwardArgs& args) {
  dispatch_float("norm_backward", args.x.dtype(), [&]<class T>(Type<T>) { norm_gradient<T>(ctx, args); });
}

}  // namespace

void add_norm_kernels(KernelTable& table) {
  table.norm = norm;
  table.norm_backward = norm_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
