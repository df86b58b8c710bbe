#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/functions.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

template <class C>
struct Gate {
  C limit, up_offset;

  C gate(C g) const { return g > limit ? limit : g; }
  C up(C u) const { return (u > limit ? limit : u < -limit ? -limit : u) + up_offset; }
};

template <class C>
Gate<C> make_gate(double limit, double up_offset) {
  return {limit > 0 ? C(limit) : C(INFINITY), C(up_offset)};
}

template <Unary K, class C>
void forward_loop(const C* gates, const C* ups, C* y, int64_t n, Gate<C> gate) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = unary_value<K>(gate.gate(gates[i])) * gate.up(ups[i]);
}

// Clamped values pass no gradient, but the limit itself does.
template <Unary K, class C>
void backward_loop(const C* gates, const C* ups, const C* dy, C* dgates, C* dups, int64_t n, Gate<C> gate) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    C g = gate.gate(gates[i]), u = ups[i], d = dy[i];
    C dgate = d * gate.up(u) * unary_slope<K>(g), dup = d * unary_value<K>(g);
    dgates[i] = gates[i] > gate.limit ? C(0) : dgate;
    dups[i] = std::fabs(u) > gate.limit ? C(0) : dup;
  }
}

template <class C>
struct Loops {
  void (*forward)(const C*, const C*, C*, int64_t, Gate<C>);
  void (*backward)(const C*, const C*, const C*, C*, C*, int64_t, Gate<C>);
};

template <class C>
Loops<C> loops_of(Unary kind) {
  switch (kind) {
    case Unary::Silu:
      return {forward_loop<Unary::Silu, C>, backward_loop<Unary::Silu, C>};
    case Unary::Gelu:
      return {forward_loop<Unary::Gelu, C>, backward_loop<Unary::Gelu, C>};
    case Unary::GeluTanh:
      return {forward_loop<Unary::GeluTanh, C>, backward_loop<Unary::GeluTanh, C>};
    case Unary::QuickGelu:
      return {forward_loop<Unary::QuickGelu, C>, backward_loop<Unary::QuickGelu, C>};
    case Unary::Relu:
      return {forward_loop<Unary::Relu, C>, backward_loop<Unary::Relu, C>};
    case Unary::SquaredRelu:
      return {forward_loop<Unary::SquaredRelu, C>, backward_loop<Unary::SquaredRelu, C>};
    case Unary::Sigmoid:
      return {forward_loop<Unary::Sigmoid, C>, backward_loop<Unary::Sigmoid, C>};
    default:
      fail("gated: unary function {} cannot be a gate", static_cast<int>(kind));
  }
}

// x + bias as Compute<T>; in place where nothing has to be done.
template <class T>
const Compute<T>* biased(const T* x, const T* bias, int64_t n, Compute<T>* buffer) {
  using C = Compute<T>;
  if (!bias) return widened(x, n, buffer);
  for (int64_t i = 0; i < n; ++i) buffer[i] = C(x[i]) + C(bias[i]);
  return buffer;
}

void gated(const KernelContext& ctx, const GatedArgs& args) {
  dispatch_float("gated", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T *x = pointer<T>(args.x), *bias = optional_pointer<T>(args.bias);
    T* y = pointer<T>(args.y);
    int64_t width = args.y.size(-1), rows = width ? args.y.numel() / width : 0;
    auto loop = loops_of<C>(args.kind).forward;
    Gate<C> gate = make_gate<C>(args.limit, args.up_offset);
    for_each_block(ctx, rows, width, [&](int64_t offset, int64_t column, int64_t n) {
      Buffer<C> gate_buffer, up_buffer, wide;
      const T* row = x + 2 * (offset - column) + column;
      const C* gates = biased(row, bias ? bias + column : nullptr, n, gate_buffer);
      const C* ups = biased(row + width, bias ? bias + width + column : nullptr, n, up_buffer);
      C* result = result_buffer(y + offset, wide);
      loop(gates, ups, result, n, gate);
      narrow(result, n, y + offset);
    });
  });
}

void gated_backward(const KernelContext& ctx, const GatedBackwardArgs& args) {
  dispatch_float("gated_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T *x = pointer<T>(args.x), *bias = optional_pointer<T>(args.bias), *dy = pointer<T>(args.dy);
    T* dx = pointer<T>(args.dx);
    int64_t width = args.dy.size(-1), rows = width ? args.dy.numel() / width : 0;
    T* y = optional_pointer<T>(args.y);
    auto loop = loops_of<C>(args.kind).backward;
    auto again = loops_of<C>(args.kind).forward;
    Gate<C> gate = make_gate<C>(args.limit, args.up_offset);
    for_each_block(ctx, rows, width, [&](int64_t offset, int64_t column, int64_t n) {
      Buffer<C> gate_buffer, up_buffer, dy_buffer, dgate_buffer, dup_buffer;
      int64_t start = 2 * (offset - column) + column;
      const C* gates = biased(x + start, bias ? bias + column : nullptr, n, gate_buffer);
      const C* ups = biased(x + start + width, bias ? bias + width + column : nullptr, n, up_buffer);
      if (y) {  // before dx, which may take the place of x
        Buffer<C> y_buffer;
        C* result = result_buffer(y + offset, y_buffer);
        again(gates, ups, result, n, gate);
        narrow(result, n, y + offset);
      }
      C* dgates = result_buffer(dx + start, dgate_buffer);
      C* dups = result_buffer(dx + start + width, dup_buffer);
      loop(gates, ups, widened(dy + offset, n, dy_buffer), dgates, dups, n, gate);
      narrow(dgates, n, dx + start);
      narrow(dups, n, dx + start + width);
    });
  });
}

}  // namespace

void add_activation_kernels(KernelTable& table) {
  table.gated = gated;
  table.gated_backward = gated_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
