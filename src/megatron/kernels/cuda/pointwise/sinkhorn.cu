#include "megatron/kernels/cuda/core/launch.cuh"
#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"
#include "megatron/kernels/sinkhorn_matrix.h"

// One thread a matrix: they are small and many. What a matrix needs on the way back lies in global memory.
namespace megatron::cuda {
namespace {

template <class C>
struct Exponential {
  __device__ C operator()(C x) const { return exp_of(x); }
};

template <class C>
struct SinkhornOp {
  SinkhornMatrix<C> one;
  const C* logits;
  C* y;
  template <int W>
  __device__ void run(int64_t i) const {
    const int64_t at = i * one.n * one.n;
    one.forward(logits + at, y + at, nullptr, Exponential<C>{});
  }
};

template <class C>
struct SinkhornBackwardOp {
  SinkhornMatrix<C> one;
  const C *logits, *dy;
  C *dlogits, *y, *sums;
  template <int W>
  __device__ void run(int64_t i) const {
    const int64_t elements = one.n * one.n, at = i * elements;
    C* own = sums + i * one.kept();
    one.forward(logits + at, y + at, own, Exponential<C>{});
    for (int64_t j = 0; j < elements; ++j) dlogits[at + j] = dy[at + j];
    one.backward(y + at, dlogits + at, own);
  }
};

template <class C, class Args>
SinkhornMatrix<C> matrix(const Args& args) {
  return {args.logits.size(1), args.iterations, static_cast<C>(args.epsilon)};
}

void sinkhorn(const KernelContext& ctx, const SinkhornArgs& args) {
  dispatch_float("sinkhorn", args.logits.dtype(), [&]<class T>(Type<T>) {
    if constexpr (std::is_same_v<T, Compute<T>>)
      for_each<1>(ctx, "sinkhorn", args.logits.size(0), false,
                  SinkhornOp<T>{matrix<T>(args), pointer<T>(args.logits), pointer<T>(args.y)});
  });
}

void sinkhorn_backward(const KernelContext& ctx, const SinkhornBackwardArgs& args) {
  dispatch_float("sinkhorn_backward", args.logits.dtype(), [&]<class T>(Type<T>) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      const auto one = matrix<T>(args);
      const int64_t count = args.logits.size(0), elements = args.logits.numel();
      Scratch scratch(ctx, static_cast<size_t>(elements + count * one.kept()) * sizeof(T));
      for_each<1>(
          ctx, "sinkhorn_backward", count, false,
          SinkhornBackwardOp<T>{one, pointer<T>(args.logits), pointer<T>(args.dy), pointer<T>(args.dlogits),
                                scratch.as<T>(), scratch.as<T>() + elements});
    }
  });
}

}  // namespace

void add_sinkhorn_kernels(KernelTable& table) {
  table.sinkhorn = sinkhorn;
  table.sinkhorn_backward = sinkhorn_backward;
}

}  // namespace megatron::cuda
