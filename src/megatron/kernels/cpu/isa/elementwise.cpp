#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/strided.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// out is contiguous: its stride is 1 but where the run has one element.
template <class T, class F>
void binary_loop(const KernelContext& ctx, const BinaryArgs& args, F f) {
  using C = Compute<T>;
  const T *a = pointer<T>(args.a), *b = pointer<T>(args.b);
  T* out = pointer<T>(args.out);
  StridedWalk<3> walk(args.out.shape(), {&args.a.strides(), &args.b.strides(), &args.out.strides()});
  int64_t a_stride = walk.inner()[0], b_stride = walk.inner()[1];
  walk.run_parallel(ctx, [&](const auto& at, int64_t n) {
    const T *x = a + at[0], *y = b + at[1];
    T* z = out + at[2];
    if (a_stride == 1 && b_stride == 1) {
#pragma GCC ivdep  // out may be a or b
      for (int64_t i = 0; i < n; ++i) z[i] = T(f(C(x[i]), C(y[i])));
    } else if (a_stride == 1 && b_stride == 0) {
      C repeated = C(y[0]);
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) z[i] = T(f(C(x[i]), repeated));
    } else {
      for (int64_t i = 0; i < n; ++i) z[i] = T(f(C(x[i * a_stride]), C(y[i * b_stride])));
    }
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

template <class C>
bool holds(Comparison kind, C x, C y) {
  switch (kind) {
    case Comparison::Equal:
      return x == y;
    case Comparison::NotEqual:
      return x != y;
    case Comparison::Less:
      return x < y;
    default:
      return x <= y;
  }
}

void compare(const KernelContext& ctx, const CompareArgs& args) {
  StridedWalk<3> walk(args.out.shape(), {&args.a.strides(), &args.b.strides(), &args.out.strides()});
  int64_t a_stride = walk.inner()[0], b_stride = walk.inner()[1];
  dispatch_any(args.a.dtype(), [&]<class T>(Type<T>) {
    using C = std::conditional_t<std::is_integral_v<T>, T, Compute<T>>;
    const T *a = pointer<T>(args.a), *b = pointer<T>(args.b);
    bool* out = pointer<bool>(args.out);
    walk.run_parallel(ctx, [&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        out[at[2] + i] = holds<C>(args.kind, C(a[at[0] + i * a_stride]), C(b[at[1] + i * b_stride]));
    });
  });
}

// A block of any floating dtype as C, and back.
template <class C>
const C* load_block(const Tensor& tensor, int64_t offset, int64_t n, C* buffer) {
  if (tensor.dtype() == dtype_of<C>()) return pointer<C>(tensor) + offset;
  dispatch_float("axpby", tensor.dtype(), [&]<class T>(Type<T>) {
    const T* source = pointer<T>(tensor) + offset;
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<C>(source[i]);
  });
  return buffer;
}

template <class C>
void axpby_blocks(const KernelContext& ctx, const AxpbyArgs& args) {
  C alpha = C(args.alpha), beta = C(args.beta);
  bool in_place = args.out.dtype() == dtype_of<C>();
  for_each_block(ctx, args.out.numel(), [&](int64_t offset, int64_t n) {
    Buffer<C> a_buffer, b_buffer, out_buffer;
    const C* a = load_block(args.a, offset, n, a_buffer);
    C* out = in_place ? pointer<C>(args.out) + offset : out_buffer;
    if (args.b.defined()) {
      const C* b = load_block(args.b, offset, n, b_buffer);
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = alpha * a[i] + beta * b[i];
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = alpha * a[i];
    }
    if (!in_place)
      dispatch_float("axpby", args.out.dtype(), [&]<class T>(Type<T>) {
        T* target = pointer<T>(args.out) + offset;
        for (int64_t i = 0; i < n; ++i) target[i] = T(out[i]);
      });
  });
}

void axpby(const KernelContext& ctx, const AxpbyArgs& args) {
  bool wide = args.a.dtype() == DType::F64 || args.out.dtype() == DType::F64 ||
              (args.b.defined() && args.b.dtype() == DType::F64);
  if (wide)
    axpby_blocks<double>(ctx, args);
  else
    axpby_blocks<float>(ctx, args);
}

void where(const KernelContext& ctx, const WhereArgs& args) {
  StridedWalk<4> walk(args.out.shape(),
                      {&args.condition.strides(), &args.a.strides(), &args.b.strides(), &args.out.strides()});
  auto steps = walk.inner();
  dispatch_any(args.out.dtype(), [&]<class T>(Type<T>) {
    const bool* condition = pointer<bool>(args.condition);
    const T *a = pointer<T>(args.a), *b = pointer<T>(args.b);
    T* out = pointer<T>(args.out);
    walk.run_parallel(ctx, [&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        out[at[3] + i] = condition[at[0] + i * steps[0]] ? a[at[1] + i * steps[1]] : b[at[2] + i * steps[2]];
    });
  });
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
  table.binary = binary;
  table.compare = compare;
  table.axpby = axpby;
  table.where = where;
}

}  // namespace megatron::cpu::MEGATRON_ISA
