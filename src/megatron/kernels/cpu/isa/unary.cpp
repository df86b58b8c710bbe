#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/functions.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

template <Unary K>
struct Kind {
  static constexpr Unary value = K;
};

template <class F>
void dispatch_kind(Unary kind, F&& f) {
  switch (kind) {
    case Unary::Neg:
      return f(Kind<Unary::Neg>{});
    case Unary::Abs:
      return f(Kind<Unary::Abs>{});
    case Unary::Square:
      return f(Kind<Unary::Square>{});
    case Unary::Sqrt:
      return f(Kind<Unary::Sqrt>{});
    case Unary::Rsqrt:
      return f(Kind<Unary::Rsqrt>{});
    case Unary::Exp:
      return f(Kind<Unary::Exp>{});
    case Unary::Log:
      return f(Kind<Unary::Log>{});
    case Unary::Sigmoid:
      return f(Kind<Unary::Sigmoid>{});
    case Unary::Tanh:
      return f(Kind<Unary::Tanh>{});
    case Unary::Softplus:
      return f(Kind<Unary::Softplus>{});
    case Unary::Relu:
      return f(Kind<Unary::Relu>{});
    case Unary::SquaredRelu:
      return f(Kind<Unary::SquaredRelu>{});
    case Unary::Silu:
      return f(Kind<Unary::Silu>{});
    case Unary::Gelu:
      return f(Kind<Unary::Gelu>{});
    case Unary::GeluTanh:
      return f(Kind<Unary::GeluTanh>{});
    case Unary::QuickGelu:
      return f(Kind<Unary::QuickGelu>{});
    case Unary::Mish:
      return f(Kind<Unary::Mish>{});
  }
}

template <class C>
using ValueLoop = void (*)(const C* x, C* y, int64_t n);
template <class C>
using SlopeLoop = void (*)(const C* x, const C* dy, C* dx, int64_t n);

template <class C>
ValueLoop<C> value_loop(Unary kind) {
  ValueLoop<C> loop = nullptr;
  dispatch_kind(kind, [&]<class K>(K) {
    loop = [](const C* x, C* y, int64_t n) {
#pragma GCC ivdep  // y may be x
      for (int64_t i = 0; i < n; ++i) y[i] = unary_value<K::value>(x[i]);
    };
  });
  return loop;
}

template <class C>
SlopeLoop<C> slope_loop(Unary kind) {
  SlopeLoop<C> loop = nullptr;
  dispatch_kind(kind, [&]<class K>(K) {
    loop = [](const C* x, const C* dy, C* dx, int64_t n) {
#pragma GCC ivdep  // dx may be dy
      for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * unary_slope<K::value>(x[i]);
    };
  });
  return loop;
}

// Calls f(offset, n, x + bias as Compute<T>) for every block.
template <class T, class F>
void with_bias(const KernelContext& ctx, const Tensor& x_tensor, const Tensor& bias_tensor, F&& f) {
  using C = Compute<T>;
  const T* x = pointer<T>(x_tensor);
  if (!bias_tensor.defined()) {
    for_each_block(ctx, x_tensor.numel(), [&](int64_t offset, int64_t n) {
      Buffer<C> wide;
      f(offset, n, widened(x + offset, n, wide));
    });
    return;
  }
  const T* bias = pointer<T>(bias_tensor);
  int64_t columns = bias_tensor.numel();
  int64_t rows = columns ? x_tensor.numel() / columns : 0;
  for_each_block(ctx, rows, columns, [&](int64_t offset, int64_t column, int64_t n) {
    Buffer<C> sum;
    for (int64_t i = 0; i < n; ++i) sum[i] = C(x[offset + i]) + C(bias[column + i]);
    f(offset, n, static_cast<const C*>(sum));
  });
}

void unary(const KernelContext& ctx, const UnaryArgs& args) {
  dispatch_float("unary", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    T* y = pointer<T>(args.y);
    ValueLoop<C> loop = value_loop<C>(args.kind);
    with_bias<T>(ctx, args.x, args.bias, [&](int64_t offset, int64_t n, const C* x) {
      Buffer<C> wide;
      C* result = result_buffer(y + offset, wide);
      loop(x, result, n);
      narrow(result, n, y + offset);
    });
  });
}

void unary_backward(const KernelContext& ctx, const UnaryBackwardArgs& args) {
  dispatch_float("unary_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T* dy = pointer<T>(args.dy);
    T* dx = pointer<T>(args.dx);
    SlopeLoop<C> loop = slope_loop<C>(args.kind);
    with_bias<T>(ctx, args.x, args.bias, [&](int64_t offset, int64_t n, const C* x) {
      Buffer<C> wide, wide_dy;
      C* result = result_buffer(dx + offset, wide);
      loop(x, widened(dy + offset, n, wide_dy), result, n);
      narrow(result, n, dx + offset);
    });
  });
}

}  // namespace

void add_unary_kernels(KernelTable& table) {
  table.unary = unary;
  table.unary_backward = unary_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
