#include "megatron/kernels/cuda/core/strided.cuh"

namespace megatron::cuda {
namespace {

template <class C>
__device__ __forceinline__ C combine(Binary kind, C a, C b) {
  switch (kind) {
    case Binary::Add:
      return a + b;
    case Binary::Sub:
      return a - b;
    case Binary::Mul:
      return a * b;
    case Binary::Div:
      return a / b;
    case Binary::Max:
      return a > b ? a : b;
    case Binary::Min:
      return a < b ? a : b;
  }
  return a;
}

template <class T>
struct DenseBinaryOp {
  Binary kind;
  const T *a, *b;
  T* out;
  template <int W>
  __device__ void run(int64_t i) const {
    Compute<T> x[W], y[W];
    load(x, a + i);
    load(y, b + i);
#pragma unroll
    for (int j = 0; j < W; ++j) x[j] = combine(kind, x[j], y[j]);
    store(out + i, x);
  }
};

template <class T>
struct StridedBinaryOp {
  Binary kind;
  const T *a, *b;
  T* out;
  StridedIndex<2> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[2];
    index.offsets(i, at);
    out[i] = narrow<T>(combine(kind, widen(a[at[0]]), widen(b[at[1]])));
  }
};

void binary(const KernelContext& ctx, const BinaryArgs& args) {
  dispatch_float("binary", args.out.dtype(), [&]<class T>(Type<T>) {
    T *a = pointer<T>(args.a), *b = pointer<T>(args.b), *out = pointer<T>(args.out);
    int64_t n = args.out.numel();
    if (args.a.is_contiguous() && args.b.is_contiguous())
      for_each<kVector<T>>(ctx, "binary", n, aligned(a) && aligned(b) && aligned(out),
                           DenseBinaryOp<T>{args.kind, a, b, out});
    else
      for_each<1>(ctx, "binary", n, false,
                  StridedBinaryOp<T>{
                      args.kind, a, b, out, {args.out.shape(), {&args.a.strides(), &args.b.strides()}}});
  });
}

// Two elements at a time suit every mixture of dtypes; the sum is kept in the widest of them.
template <class A, class B, class Out>
struct AxpbyOp {
  using C = std::conditional_t<
      std::is_same_v<A, double> || std::is_same_v<B, double> || std::is_same_v<Out, double>, double, float>;
  C alpha, beta;
  const A* a;
  const B* b;
  Out* out;
  template <int W>
  __device__ void run(int64_t i) const {
    Compute<A> x[W];
    Compute<B> y[W];
    Compute<Out> result[W];
    load(x, a + i);
    if (b) load(y, b + i);
#pragma unroll
    for (int j = 0; j < W; ++j)
      result[j] = static_cast<Compute<Out>>(b ? alpha * C(x[j]) + beta * C(y[j]) : alpha * C(x[j]));
    store(out + i, result);
  }
};

void axpby(const KernelContext& ctx, const AxpbyArgs& args) {
  dispatch_float("axpby", args.a.dtype(), [&]<class A>(Type<A>) {
    dispatch_float("axpby", args.b ? args.b.dtype() : args.a.dtype(), [&]<class B>(Type<B>) {
      dispatch_float("axpby", args.out.dtype(), [&]<class Out>(Type<Out>) {
        using Op = AxpbyOp<A, B, Out>;
        constexpr int W = 16 / static_cast<int>(std::max({sizeof(A), sizeof(B), sizeof(Out)}));
        Op op{static_cast<typename Op::C>(args.alpha), static_cast<typename Op::C>(args.beta),
              pointer<A>(args.a), pointer<B>(args.b), pointer<Out>(args.out)};
        for_each<W>(ctx, "axpby", args.out.numel(), aligned(op.a) && aligned(op.b) && aligned(op.out), op);
      });
    });
  });
}

template <class T>
struct WhereOp {
  const bool* condition;
  const T *a, *b;
  T* out;
  StridedIndex<3> index;
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[3];
    index.offsets(i, at);
    out[i] = condition[at[0]] ? a[at[1]] : b[at[2]];
  }
};

// Only moves elements, so their size is all that counts.
void where(const KernelContext& ctx, const WhereArgs& args) {
  auto choose = [&]<class T>(Type<T>) {
    WhereOp<T> op{pointer<bool>(args.condition),
                  pointer<T>(args.a),
                  pointer<T>(args.b),
                  pointer<T>(args.out),
                  {args.out.shape(), {&args.condition.strides(), &args.a.strides(), &args.b.strides()}}};
    for_each<1>(ctx, "where", args.out.numel(), false, op);
  };
  switch (size_of(args.out.dtype())) {
    case 1:
      return choose(Type<uint8_t>{});
    case 2:
      return choose(Type<uint16_t>{});
    case 4:
      return choose(Type<uint32_t>{});
    default:
      return choose(Type<uint64_t>{});
  }
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
  table.binary = binary;
  table.axpby = axpby;
  table.where = where;
}

}  // namespace megatron::cuda
