#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda {
namespace {

// Adds to W neighbours from element i on the bias of their columns, where there is one.
template <class T, int W>
__device__ __forceinline__ void add_bias(Compute<T> (&value)[W], const T* bias, int64_t i, int64_t columns) {
  if (!bias) return;
  int64_t column = i % columns;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    value[j] += widen(bias[column]);
    if (++column == columns) column = 0;
  }
}

template <class T>
struct UnaryOp {
  Unary kind;
  const T *x, *bias;
  T* y;
  int64_t columns;

  template <int W>
  __device__ void run(int64_t i) const {
    Compute<T> value[W];
    load(value, x + i);
    add_bias(value, bias, i, columns);
#pragma unroll
    for (int j = 0; j < W; ++j) value[j] = activate<kRough<T>>(kind, value[j]);
    store(y + i, value);
  }
};

template <class T>
struct UnaryBackwardOp {
  Unary kind;
  const T *x, *bias, *dy;
  T* dx;
  int64_t columns;

  template <int W>
  __device__ void run(int64_t i) const {
    Compute<T> value[W], slope[W];
    load(value, x + i);
    load(slope, dy + i);
    add_bias(value, bias, i, columns);
#pragma unroll
    for (int j = 0; j < W; ++j) slope[j] *= activate_slope<kRough<T>>(kind, value[j]);
    store(dx + i, slope);
  }
};

int64_t last_size(const Tensor& x) { return x.rank() ? x.size(-1) : 1; }

void unary(const KernelContext& ctx, const UnaryArgs& args) {
  dispatch_float("unary", args.x.dtype(), [&]<class T>(Type<T>) {
    UnaryOp<T> op{args.kind, pointer<T>(args.x), pointer<T>(args.bias), pointer<T>(args.y),
                  last_size(args.x)};
    for_each<kVector<T>>(ctx, "unary", args.x.numel(), aligned(op.x) && aligned(op.y), op);
  });
}

void unary_backward(const KernelContext& ctx, const UnaryBackwardArgs& args) {
  dispatch_float("unary_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    UnaryBackwardOp<T> op{args.kind,           pointer<T>(args.x),  pointer<T>(args.bias),
                          pointer<T>(args.dy), pointer<T>(args.dx), last_size(args.x)};
    for_each<kVector<T>>(ctx, "unary_backward", args.x.numel(),
                         aligned(op.x) && aligned(op.dy) && aligned(op.dx), op);
  });
}

// K fixes the gate's function at compile time; kAnyKind leaves it open.
constexpr int kAnyKind = -1;

template <int K>
__device__ __forceinline__ Unary kind_or(Unary kind) {
  return K == kAnyKind ? kind : static_cast<Unary>(K);
}

// Elements are those of y [rows, width]; a vector never straddles rows.
template <class T, int K>
struct GatedOp {
  Unary kind;
  const T *x, *bias;
  T* y;
  int64_t width;
  Compute<T> limit, up_offset;

  template <int W>
  __device__ void run(int64_t i) const {
    using C = Compute<T>;
    int64_t row = divide(i, width), column = i - row * width;
    C gate[W], up[W];
    load(gate, x + row * 2 * width + column);
    load(up, x + row * 2 * width + width + column);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C g = gate[j], u = up[j];
      if (bias) {
        g += widen(bias[column + j]);
        u += widen(bias[width + column + j]);
      }
      if (limit > 0) {
        g = g > limit ? limit : g;
        u = u > limit ? limit : (u < -limit ? -limit : u);
      }
      gate[j] = activate<kRough<T>>(kind_or<K>(kind), g) * (u + up_offset);
    }
    store(y + i, gate);
  }
};

// Plain: no bias and no limit, which spares half of the arithmetic.
template <class T, int K, bool Plain>
struct GatedBackwardOp {
  Unary kind;
  const T *x, *bias, *dy;
  T *dx, *y;
  int64_t width;
  Compute<T> limit, up_offset;

  template <int W>
  __device__ void run(int64_t i) const {
    using C = Compute<T>;
    int64_t row = divide(i, width), column = i - row * width;
    const int64_t at = row * 2 * width + column;
    C gate[W], up[W], grad[W];
    load(gate, x + at);
    load(up, x + at + width);
    load(grad, dy + i);
    Unary f = kind_or<K>(kind);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      C g = gate[j], u = up[j];
      bool gate_free = true, up_free = true;
      if constexpr (!Plain) {
        if (bias) {
          g += widen(bias[column + j]);
          u += widen(bias[width + column + j]);
        }
        if (limit > 0) {
          gate_free = !(g > limit);
          up_free = !(u > limit || u < -limit);
          g = gate_free ? g : limit;
          u = up_free ? u : (u > 0 ? limit : -limit);
        }
      }
      C value, slope, raised = u + up_offset;
      if constexpr (K == static_cast<int>(Unary::Silu)) {  // value and slope share the sigmoid
        C s = sigmoid<kRough<T>>(g);
        value = g * s;
        slope = s + value * (C(1) - s);
      } else {
        value = activate<kRough<T>>(f, g);
        slope = activate_slope<kRough<T>>(f, g);
      }
      gate[j] = gate_free ? grad[j] * raised * slope : C(0);
      up[j] = up_free ? grad[j] * value : C(0);
      grad[j] = value * raised;
    }
    store(dx + at, gate);
    store(dx + at + width, up);
    if (y) store(y + i, grad);
  }
};

// f(std::integral_constant<int, K>) for the gates of common models, kAnyKind for the others.
template <class F>
void dispatch_gate(Unary kind, F&& f) {
  switch (kind) {
    case Unary::Silu:
      return f(std::integral_constant<int, static_cast<int>(Unary::Silu)>{});
    case Unary::GeluTanh:
      return f(std::integral_constant<int, static_cast<int>(Unary::GeluTanh)>{});
    default:
      return f(std::integral_constant<int, kAnyKind>{});
  }
}

void gated(const KernelContext& ctx, const GatedArgs& args) {
  int64_t width = last_size(args.y);
  dispatch_float("gated", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_gate(args.kind, [&]<int K>(std::integral_constant<int, K>) {
      GatedOp<T, K> op{args.kind,
                       pointer<T>(args.x),
                       pointer<T>(args.bias),
                       pointer<T>(args.y),
                       width,
                       static_cast<Compute<T>>(args.limit),
                       static_cast<Compute<T>>(args.up_offset)};
      for_each<kVector<T>>(ctx, "gated", args.y.numel(),
                           width % kVector<T> == 0 && aligned(op.x) && aligned(op.y), op);
    });
  });
}

template <class T, int K, bool Plain>
void launch_gated_backward(const KernelContext& ctx, const GatedBackwardArgs& args) {
  int64_t width = last_size(args.dy);
  GatedBackwardOp<T, K, Plain> op{args.kind,
                                  pointer<T>(args.x),
                                  pointer<T>(args.bias),
                                  pointer<T>(args.dy),
                                  pointer<T>(args.dx),
                                  pointer<T>(args.y),
                                  width,
                                  static_cast<Compute<T>>(args.limit),
                                  static_cast<Compute<T>>(args.up_offset)};
  bool vector = width % kVector<T> == 0 && aligned(op.x) && aligned(op.dy) && aligned(op.dx) && aligned(op.y);
  for_each<kVector<T>>(ctx, "gated_backward", args.dy.numel(), vector, op);
}

void gated_backward(const KernelContext& ctx, const GatedBackwardArgs& args) {
  dispatch_float("gated_backward", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_gate(args.kind, [&]<int K>(std::integral_constant<int, K>) {
      if (K != kAnyKind && !args.bias && args.limit <= 0)
        launch_gated_backward<T, K, true>(ctx, args);
      else
        launch_gated_backward<T, K, false>(ctx, args);
    });
  });
}

}  // namespace

void add_activation_kernels(KernelTable& table) {
  table.unary = unary;
  table.unary_backward = unary_backward;
  table.gated = gated;
  table.gated_backward = gated_backward;
}

}  // namespace megatron::cuda
