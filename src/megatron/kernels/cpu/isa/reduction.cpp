#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/math.h"
#include "megatron/kernels/cpu/isa/scratch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// What one reduction does: how values join, and what is done at the end.
template <Reduction K, class C>
struct Joining {
  static constexpr bool sums = K == Reduction::Sum || K == Reduction::Mean;
  static C join(C a, C b) {
    if constexpr (sums) return a + b;
    if constexpr (K == Reduction::Max) return a > b ? a : b;
    if constexpr (K == Reduction::Min) return a < b ? a : b;
  }
  static C finish(C value, int64_t n) { return K == Reduction::Mean ? value / C(n) : value; }
};

// Every column of a [n, inner] matrix, for the columns [first, first + width). Sums go over groups of rows
// first: fewer roundings than one long chain.
template <class J, class T, class C>
void reduce_columns(const T* x, int64_t n, int64_t inner, int64_t width, C* total) {
  constexpr int64_t group = 64;
  C part[kLanes * 8];
  for (int64_t begin = 0; begin < n; begin += group) {
    int64_t end = std::min(n, begin + group);
    for (int64_t j = 0; j < width; ++j) part[j] = C(x[begin * inner + j]);
    for (int64_t r = begin + 1; r < end; ++r)
      for (int64_t j = 0; j < width; ++j) part[j] = J::join(part[j], C(x[r * inner + j]));
    for (int64_t j = 0; j < width; ++j) total[j] = begin ? J::join(total[j], part[j]) : part[j];
  }
}

// Puts finished values where they belong, in the dtype of the result.
template <class C>
using Store = void (*)(const Tensor& out, int64_t offset, const C* values, int64_t n, bool accumulate);

template <class C>
Store<C> store_for(DType dtype) {
  Store<C> store = nullptr;
  dispatch_float("reduce", dtype, [&]<class G>(Type<G>) {
    store = [](const Tensor& out, int64_t offset, const C* values, int64_t n, bool accumulate) {
      G* target = pointer<G>(out) + offset;
      for (int64_t j = 0; j < n; ++j)
        target[j] =
            G(static_cast<Compute<G>>(accumulate ? static_cast<C>(target[j]) + values[j] : values[j]));
    };
  });
  return store;
}

template <Reduction K, class T>
void reduce_typed(const KernelContext& ctx, const ReduceArgs& args) {
  using C = Compute<T>;
  using J = Joining<K, C>;
  const T* x = pointer<T>(args.x);
  Store<C> store = store_for<C>(args.out.dtype());
  int64_t n = args.n, inner = args.inner;
  if (inner == 1) {
    ctx.pool.parallel_for(args.outer, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        auto term = [&](int64_t i) { return C(in[i]); };
        C value;
        if constexpr (J::sums)
          value = J::finish(sum_over<C>(n, term), n);
        else
          value = best_over<C>(n, term, &J::join);
        store(args.out, row, &value, 1, args.accumulate);
      }
    });
    return;
  }
  constexpr int64_t width = kLanes * 8;
  int64_t strips = (inner + width - 1) / width;
  ctx.pool.parallel_for(args.outer * strips, std::max<int64_t>(1, kGrain / (n * std::min(width, inner))),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t task = begin; task < end; ++task) {
                            int64_t row = task / strips, first = task % strips * width,
                                    count = std::min(width, inner - first);
                            C total[width];
                            reduce_columns<J>(x + row * n * inner + first, n, inner, count, total);
                            for (int64_t j = 0; j < count; ++j) total[j] = J::finish(total[j], n);
                            store(args.out, row * inner + first, total, count, args.accumulate);
                          }
                        });
}

void reduce(const KernelContext& ctx, const ReduceArgs& args) {
  if (args.outer * args.inner == 0) return;
  if (args.n == 0) {  // a sum over nothing
    if (args.accumulate) return;
    dispatch_float("reduce", args.out.dtype(), [&]<class G>(Type<G>) {
      std::fill_n(pointer<G>(args.out), args.outer * args.inner, G(0));
    });
    return;
  }
  dispatch_float("reduce", args.x.dtype(), [&]<class T>(Type<T>) {
    switch (args.kind) {
      case Reduction::Sum:
        return reduce_typed<Reduction::Sum, T>(ctx, args);
      case Reduction::Mean:
        return reduce_typed<Reduction::Mean, T>(ctx, args);
      case Reduction::Max:
        return reduce_typed<Reduction::Max, T>(ctx, args);
      case Reduction::Min:
        return reduce_typed<Reduction::Min, T>(ctx, args);
    }
  });
}

void softmax(const KernelContext& ctx, const SoftmaxArgs& args) {
  int64_t n = args.x.size(-1), rows = n ? args.x.numel() / n : 0;
  dispatch_float("softmax", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T* x = pointer<T>(args.x);
    T* y = pointer<T>(args.y);
    ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / n / 4), [&](int64_t begin, int64_t end) {
      Scratch<C> scratch(ctx, std::is_same_v<T, C> ? 0 : n);
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * n;
        T* out = y + row * n;
        C largest = max_over<C>(n, [&](int64_t i) { return C(in[i]); });
        if (largest == C(-INFINITY)) {  // everything is masked out
          std::fill_n(out, n, T(0));
          continue;
        }
        C* wide = result_buffer(out, scratch.data());
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) wide[i] = math::exp(C(in[i]) - largest);
        C scale = C(1) / sum_over<C>(n, [&](int64_t i) { return wide[i]; });
        for (int64_t i = 0; i < n; ++i) out[i] = T(wide[i] * scale);
      }
    });
  });
}

void softmax_backward(const KernelContext& ctx, const SoftmaxBackwardArgs& args) {
  int64_t n = args.y.size(-1), rows = n ? args.y.numel() / n : 0;
  dispatch_float("softmax_backward", args.y.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T *y = pointer<T>(args.y), *dy = pointer<T>(args.dy);
    T* dx = pointer<T>(args.dx);
    ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *p = y + row * n, *d = dy + row * n;
        C along = sum_over<C>(n, [&](int64_t i) { return C(p[i]) * C(d[i]); });
        for (int64_t i = 0; i < n; ++i) dx[row * n + i] = T(C(p[i]) * (C(d[i]) - along));
      }
    });
  });
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
  table.reduce = reduce;
  table.softmax = softmax;
  table.softmax_backward = softmax_backward;
}

}  // namespace megatron::cpu::MEGATRON_ISA
