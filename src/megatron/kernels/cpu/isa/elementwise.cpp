#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// Visits the elements of out in order with the matching offsets of strided operands: f(linear index, offset
// per operand).
template <int N, class F>
void for_each_strided(const Shape& shape, const std::array<const Shape*, N>& strides, int64_t begin,
                      int64_t end, F&& f) {
  int rank = shape.rank();
  std::array<int64_t, Shape::kMaxRank> index{};
  std::array<int64_t, N> offset{};
  int64_t rest = begin;
  for (int d = rank - 1; d >= 0; --d) {
    index[d] = shape[d] ? rest % shape[d] : 0;
    rest = shape[d] ? rest / shape[d] : 0;
    for (int i = 0; i < N; ++i) offset[i] += index[d] * (*strides[i])[d];
  }
  for (int64_t linear = begin; linear < end; ++linear) {
    f(linear, offset);
    for (int d = rank - 1; d >= 0; --d) {
      for (int i = 0; i < N; ++i) offset[i] += (*strides[i])[d];
      if (++index[d] < shape[d]) break;
      for (int i = 0; i < N; ++i) offset[i] -= index[d] * (*strides[i])[d];
      index[d] = 0;
    }
  }
}

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<To, bool>)
    return static_cast<float>(value) != 0;
  else if constexpr (std::is_arithmetic_v<To> && std::is_arithmetic_v<From>)
    return static_cast<To>(value);
  else if constexpr (std::is_arithmetic_v<To>)
    return static_cast<To>(static_cast<float>(value));
  else
    return To(static_cast<float>(value));
}

void copy(const KernelContext& ctx, const CopyArgs& args) {
  int64_t n = args.source.numel();
  dispatch_any(args.source.dtype(), [&]<class S>(Type<S>) {
    dispatch_any(args.target.dtype(), [&]<class T>(Type<T>) {
      const S* source = pointer<S>(args.source);
      T* target = pointer<T>(args.target);
      if (args.source.is_contiguous() && args.target.is_contiguous()) {
        ctx.pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) target[i] = convert<S, T>(source[i]);
        });
        return;
      }
      std::array<const Shape*, 2> strides{&args.source.strides(), &args.target.strides()};
      ctx.pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        for_each_strided<2>(args.source.shape(), strides, begin, end, [&](int64_t, const auto& offset) {
          target[offset[1]] = convert<S, T>(source[offset[0]]);
        });
      });
    });
  });
}

void fill(const KernelContext& ctx, const FillArgs& args) {
  dispatch_any(args.out.dtype(), [&]<class T>(Type<T>) {
    T* out = pointer<T>(args.out);
    T value = convert<double, T>(args.value);
    if (args.out.is_contiguous()) {
      ctx.pool.parallel_for(args.out.numel(), kGrain,
                            [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, value); });
      return;
    }
    for_each_strided<1>(args.out.shape(), {&args.out.strides()}, 0, args.out.numel(),
                        [&](int64_t, const auto& offset) { out[offset[0]] = value; });
  });
}

template <class T, class F>
void binary_loop(const KernelContext& ctx, const BinaryArgs& args, F f) {
  using C = Compute<T>;
  const T *a = pointer<T>(args.a), *b = pointer<T>(args.b);
  T* out = pointer<T>(args.out);
  bool dense = args.a.is_contiguous() && args.b.is_contiguous();
  ctx.pool.parallel_for(args.out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (dense) {
      for (int64_t i = begin; i < end; ++i) out[i] = T(f(C(a[i]), C(b[i])));
      return;
    }
    for_each_strided<2>(args.out.shape(), {&args.a.strides(), &args.b.strides()}, begin, end,
                        [&](int64_t i, const auto& at) { out[i] = T(f(C(a[at[0]]), C(b[at[1]]))); });
  });
}

void binary(const KernelContext& ctx, const BinaryArgs& args) {
  dispatch_float("binary", args.out.dtype(), [&]<class T>(Type<T>) {
    switch (args.kind) {
      case Binary::Add:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x + y; });
      case Binary::Sub:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x - y; });
      case Binary::Mul:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x * y; });
      case Binary::Div:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x / y; });
      case Binary::Max:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x > y ? x : y; });
      case Binary::Min:
        return binary_loop<T>(ctx, args, [](auto x, auto y) { return x < y ? x : y; });
    }
  });
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
  table.copy = copy;
  table.fill = fill;
  table.binary = binary;
}

}  // namespace megatron::cpu::MEGATRON_ISA
