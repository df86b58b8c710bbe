#include "megatron/kernels/cpu/isa/families.h"
#include "megatron/kernels/cpu/isa/strided.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// Copies n elements, strides in elements.
using Run = void (*)(const void* source, int64_t source_stride, void* target, int64_t target_stride,
                     int64_t n);

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<To, bool>)
    return value != 0;
  else if constexpr (std::is_arithmetic_v<To>)
    return static_cast<To>(value);
  else
    return To(static_cast<float>(value));
}

template <class S, class T>
void convert_run(const void* source, int64_t source_stride, void* target, int64_t target_stride, int64_t n) {
  auto* from = static_cast<const S*>(source);
  auto* to = static_cast<T*>(target);
  if (source_stride == 1 && target_stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = convert<S, T>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * target_stride] = convert<S, T>(from[i * source_stride]);
  }
}

// To or from the wide type W, in which blocks pass between two narrow ones.
template <class W>
Run widening(DType dtype) {
  Run run = nullptr;
  dispatch_any(dtype, [&]<class S>(Type<S>) { run = convert_run<S, W>; });
  return run;
}

template <class W>
Run narrowing(DType dtype) {
  Run run = nullptr;
  dispatch_any(dtype, [&]<class T>(Type<T>) { run = convert_run<W, T>; });
  return run;
}

Run same_size(size_t bytes) {
  switch (bytes) {
    case 8:
      return convert_run<uint64_t, uint64_t>;
    case 4:
      return convert_run<uint32_t, uint32_t>;
    case 2:
      return convert_run<uint16_t, uint16_t>;
    default:
      return convert_run<uint8_t, uint8_t>;
  }
}

// The pairs that training converts between; null for the others, which go through a block of wide values. A
// loop for each of the 144 pairs would take minutes to compile.
Run direct(DType from, DType to) {
  if (from == to) return same_size(size_of(from));
  if (from == DType::F32 && to == DType::BF16) return convert_run<float, bf16>;
  if (from == DType::BF16 && to == DType::F32) return convert_run<bf16, float>;
  if (from == DType::F32 && to == DType::F16) return convert_run<float, fp16>;
  if (from == DType::F16 && to == DType::F32) return convert_run<fp16, float>;
  if (from == DType::F64) return narrowing<double>(to);
  if (to == DType::F64) return widening<double>(from);
  if (from == DType::I64 && !is_floating(to)) return narrowing<int64_t>(to);
  if (to == DType::I64 && !is_floating(from)) return widening<int64_t>(from);
  return nullptr;
}

template <class W>
void copy_through(const KernelContext& ctx, const CopyArgs& args, const StridedWalk<2>& walk) {
  Run widen = widening<W>(args.source.dtype()), narrow = narrowing<W>(args.target.dtype());
  auto* source = pointer<char>(args.source);
  auto* target = pointer<char>(args.target);
  auto source_size = static_cast<int64_t>(size_of(args.source.dtype()));
  auto target_size = static_cast<int64_t>(size_of(args.target.dtype()));
  auto [source_stride, target_stride] = walk.inner();
  walk.run_parallel(ctx, [&, s = source_stride, t = target_stride](const auto& at, int64_t n) {
    constexpr int64_t kBlock = 256;
    W block[kBlock];
    for (int64_t i = 0; i < n; i += kBlock) {
      int64_t part = std::min(kBlock, n - i);
      widen(source + (at[0] + i * s) * source_size, s, block, 1, part);
      narrow(block, 1, target + (at[1] + i * t) * target_size, t, part);
    }
  });
}

void copy(const KernelContext& ctx, const CopyArgs& args) {
  DType from = args.source.dtype(), to = args.target.dtype();
  StridedWalk<2> walk(args.source.shape(), {&args.source.strides(), &args.target.strides()});
  Run run = direct(from, to);
  if (!run) {
    bool integers = !is_floating(from) && !is_floating(to);
    return integers ? copy_through<int64_t>(ctx, args, walk) : copy_through<double>(ctx, args, walk);
  }
  auto* source = pointer<char>(args.source);
  auto* target = pointer<char>(args.target);
  auto source_size = static_cast<int64_t>(size_of(from)), target_size = static_cast<int64_t>(size_of(to));
  auto [source_stride, target_stride] = walk.inner();
  walk.run_parallel(ctx, [&, s = source_stride, t = target_stride](const auto& at, int64_t n) {
    run(source + at[0] * source_size, s, target + at[1] * target_size, t, n);
  });
}

void fill(const KernelContext& ctx, const FillArgs& args) {
  // Repeating one element is a copy with stride 0.
  uint64_t element = 0;
  narrowing<double>(args.out.dtype())(&args.value, 1, &element, 1, 1);
  Run run = same_size(size_of(args.out.dtype()));
  StridedWalk<1> walk(args.out.shape(), {&args.out.strides()});
  auto* out = pointer<char>(args.out);
  auto size = static_cast<int64_t>(size_of(args.out.dtype()));
  walk.run_parallel(ctx, [&, stride = walk.inner()[0]](const auto& at, int64_t n) {
    run(&element, 0, out + at[0] * size, stride, n);
  });
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
  table.copy = copy;
  table.fill = fill;
}

}  // namespace megatron::cpu::MEGATRON_ISA
