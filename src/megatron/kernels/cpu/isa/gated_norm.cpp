#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/functions.h"
#include "megatron/kernels/cpu/isa/lanes.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// One group of channels of one token.
template <class T>
struct GatedRow {
  using C = Compute<T>;
  const T *x, *gate, *weight, *dy;
  bool gate_first;

  C open(int64_t j) const { return unary_value<Unary::Silu>(C(gate[j])); }
  C input(int64_t j) const { return gate_first ? C(x[j]) * open(j) : C(x[j]); }  // of the norm
  C factor(int64_t j) const { return gate_first ? C(weight[j]) : C(weight[j]) * open(j); }
  C along(int64_t size) const {  // the row's sum with dy
    return sum_over<C>(size, [&](int64_t j) { return C(dy[j]) * factor(j) * input(j); });
  }
};

// The layout that all three kernels share.
template <class T>
struct GatedRows {
  const T *x, *gate, *weight, *dy;
  int64_t x_stride, gate_stride, dy_stride, tokens, groups, size;
  bool gate_first, shared_weight;

  template <class Args>
  GatedRows(const Args& args, const Tensor& statistics)
      : x(pointer<T>(args.x)),
        gate(pointer<T>(args.gate)),
        weight(optional_pointer<T>(args.weight)),
        dy(nullptr),
        x_stride(args.x.stride(0)),
        gate_stride(args.gate.stride(0)),
        dy_stride(0),
        tokens(args.x.size(0)),
        groups(statistics.size(1)),
        size(args.x.size(1) / groups),
        gate_first(args.gate_first),
        shared_weight(args.weight.defined() && args.weight.numel() == size && groups > 1) {}

  void take_dy(const Tensor& tensor) {
    dy = pointer<T>(tensor);
    dy_stride = tensor.stride(0);
  }
  GatedRow<T> row(int64_t token, int64_t group) const {
    int64_t at = group * size;
    return {x + token * x_stride + at, gate + token * gate_stride + at,
            weight ? weight + (shared_weight ? 0 : at) : nullptr, dy ? dy + token * dy_stride + at : nullptr,
            gate_first};
  }
  int64_t grain() const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, groups * size)); }
};

template <class T>
void sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  using C = Compute<T>;
  GatedRows<T> rows(args, args.sums);
  if (args.dy.defined()) rows.take_dy(args.dy);
  C* out = pointer<C>(args.sums);
  ctx.pool.parallel_for(rows.tokens, rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t g = 0; g < rows.groups; ++g) {
        GatedRow<T> row = rows.row(t, g);
        out[t * rows.groups + g] =
            row.dy ? row.along(rows.size)
                   : sum_over<C>(rows.size, [&](int64_t j) { return row.input(j) * row.input(j); });
      }
  });
}

template <class C>
C reciprocal(C squares, int64_t width, double epsilon) {
  return C(1) / std::sqrt(squares / C(width) + C(epsilon));
}

template <class T>
void forward(const KernelContext& ctx, const GatedNormArgs& args) {
  using C = Compute<T>;
  GatedRows<T> rows(args, args.squares);
  if (args.width == 0)
    sums<T>(ctx, {.gate_first = args.gate_first, .x = args.x, .gate = args.gate, .sums = args.squares});
  const int64_t width = args.width ? args.width : rows.size;
  const C* squares = pointer<C>(args.squares);
  T* y = pointer<T>(args.y);
  ctx.pool.parallel_for(rows.tokens, rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t g = 0; g < rows.groups; ++g) {
        GatedRow<T> row = rows.row(t, g);
        C rstd = reciprocal(squares[t * rows.groups + g], width, args.epsilon);
        T* out = y + (t * rows.groups + g) * rows.size;
        for (int64_t j = 0; j < rows.size; ++j) out[j] = T(row.input(j) * rstd * row.factor(j));
      }
  });
}

template <class T>
void backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  using C = Compute<T>;
  GatedRows<T> rows(args, args.squares);
  rows.take_dy(args.dy);
  const C *squares = pointer<C>(args.squares), *along = optional_pointer<C>(args.along);
  T *dx = pointer<T>(args.dx), *dgate = pointer<T>(args.dgate);
  ctx.pool.parallel_for(rows.tokens, rows.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t g = 0; g < rows.groups; ++g) {
        GatedRow<T> row = rows.row(t, g);
        int64_t at = t * rows.groups + g;
        C rstd = reciprocal(squares[at], args.width, args.epsilon);
        C sum = along ? along[at] : row.along(rows.size);
        C pull = sum * rstd * rstd * rstd / C(args.width);
        T *out = dx + at * rows.size, *gate = dgate + at * rows.size;
        for (int64_t j = 0; j < rows.size; ++j) {
          C du = rstd * C(row.dy[j]) * row.factor(j) - row.input(j) * pull;
          C slope = unary_slope<Unary::Silu>(C(row.gate[j]));
          out[j] = T(rows.gate_first ? du * row.open(j) : du);
          gate[j] = T(rows.gate_first ? du * C(row.x[j]) * slope
                                      : C(row.dy[j]) * C(row.x[j]) * rstd * C(row.weight[j]) * slope);
        }
      }
  });
  if (!args.dweight.defined()) return;
  // Each task sums its own channels over all tokens, so that the order is always the same.
  C* dweight = pointer<C>(args.dweight);
  int64_t columns = args.dweight.numel(), repeats = rows.shared_weight ? rows.groups : 1;
  ctx.pool.parallel_for(columns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) dweight[column] = 0;
    for (int64_t t = 0; t < rows.tokens; ++t)
      for (int64_t r = 0; r < repeats; ++r)
        for (int64_t column = begin; column < end; ++column) {
          int64_t g = rows.shared_weight ? r : column / rows.size, j = column % rows.size;
          GatedRow<T> row = rows.row(t, g);
          C rstd = reciprocal(squares[t * rows.groups + g], args.width, args.epsilon);
          C normed = row.input(j) * rstd * (rows.gate_first ? C(1) : row.open(j));
          dweight[column] += C(row.dy[j]) * normed;
        }
  });
}

void gated_norm_sums(const KernelContext& ctx, const GatedNormSumsArgs& args) {
  dispatch_float("gated_norm_sums", args.x.dtype(), [&]<class T>(Type<T>) { sums<T>(ctx, args); });
}
void gated_norm(const KernelContext& ctx, const GatedNormArgs& args) {
  dispatch_float("gated_norm", args.x.dtype(), [&]<class T>(Type<T>) { forward<T>(ctx, args); });
}
void gated_norm_backward(const KernelContext& ctx, const GatedNormBackwardArgs& args) {
  dispatch_float("gated_norm_backward", args.x.dtype(), [&]<class T>(Type<T>) { backward<T>(ctx, args); });
}

}  // namespace

void add_gated_norm_kernels(KernelTable& table) {
  table.gated_norm_sums = gated_norm_sums;
  table.gated_norm = gated_norm;
  table.gated_norm_backward = gated_norm_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
