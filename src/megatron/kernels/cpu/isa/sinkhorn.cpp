#include "megatron/kernels/sinkhorn_matrix.h"

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/families.h"
#include "megatron/kernels/cpu/isa/functions.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

constexpr int64_t kMatrices = 64;  // of one task

template <class C, class Args>
SinkhornMatrix<C> matrix(const Args& args) {
  return {args.logits.size(1), args.iterations, C(args.epsilon)};
}

template <class C, class F>
void for_each_matrix(const KernelContext& ctx, int64_t count, F f) {
  ctx.pool.parallel_for(count, kMatrices, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

void sinkhorn(const KernelContext& ctx, const SinkhornArgs& args) {
  dispatch_float("sinkhorn", args.logits.dtype(), [&]<class T>(Type<T>) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      const auto one = matrix<T>(args);
      for_each_matrix<T>(ctx, args.logits.size(0), [&](int64_t i) {
        const int64_t at = i * one.n * one.n;
        one.forward(pointer<T>(args.logits) + at, pointer<T>(args.y) + at, nullptr,
                    [](T x) { return math::exp(x); });
      });
    }
  });
}

void sinkhorn_backward(const KernelContext& ctx, const SinkhornBackwardArgs& args) {
  dispatch_float("sinkhorn_backward", args.logits.dtype(), [&]<class T>(Type<T>) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      const auto one = matrix<T>(args);
      for_each_matrix<T>(ctx, args.logits.size(0), [&](int64_t i) {
        const int64_t elements = one.n * one.n, at = i * elements;
        std::vector<T> y(static_cast<size_t>(elements)), sums(static_cast<size_t>(one.kept()));
        one.forward(pointer<T>(args.logits) + at, y.data(), sums.data(), [](T x) { return math::exp(x); });
        T* grad = pointer<T>(args.dlogits) + at;
        std::copy_n(pointer<T>(args.dy) + at, elements, grad);
        one.backward(y.data(), grad, sums.data());
      });
    }
  });
}

}  // namespace

void add_sinkhorn_kernels(KernelTable& table) {
  table.sinkhorn = sinkhorn;
  table.sinkhorn_backward = sinkhorn_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
