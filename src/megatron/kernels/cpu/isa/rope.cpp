#include <cmath>

#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

void rope_table(const KernelContext& ctx, const RopeTableArgs& args) {
  int64_t tokens = args.cos.size(0), frequencies = args.cos.size(1);
  const int64_t* positions = pointer<int64_t>(args.positions);
  bool three = args.positions.rank() == 2;
  dispatch_float("rope_table", args.cos.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const C* inverse = pointer<C>(args.inverse_frequencies);
    C *cos = pointer<C>(args.cos), *sin = pointer<C>(args.sin);
    ctx.pool.parallel_for(
        tokens, std::max<int64_t>(1, kGrain / 64 / frequencies), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            for (int64_t f = 0; f < frequencies; ++f) {
              int row = !three || f < args.sections[0] ? 0 : f < args.sections[0] + args.sections[1] ? 1 : 2;
              // The angle is rounded to the table's type, as reference models have it.
              C angle = C(positions[row * tokens + t]) * inverse[f];
              cos[t * frequencies + f] = C(std::cos(static_cast<double>(angle)) * args.amplitude);
              sin[t * frequencies + f] = C(std::sin(static_cast<double>(angle)) * args.amplitude);
            }
        });
  });
}

template <class T, class C>
void rotate_half_split(const T* x, T* y, const C* cos, const C* sin, C sign, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    C a = C(x[i]), b = C(x[i + n]), s = sign * sin[i];
    y[i] = T(a * cos[i] - b * s);
    y[i + n] = T(b * cos[i] + a * s);
  }
}

template <class T, class C>
void rotate_interleaved(const T* x, T* y, const C* cos, const C* sin, C sign, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    C a = C(x[2 * i]), b = C(x[2 * i + 1]), s = sign * sin[i];
    y[2 * i] = T(a * cos[i] - b * s);
    y[2 * i + 1] = T(b * cos[i] + a * s);
  }
}

void rope(const KernelContext& ctx, const RopeArgs& args) {
  const bool grouped = args.x.rank() == 4;
  int64_t tokens = args.x.size(0), groups = grouped ? args.x.size(1) : 1, heads = args.x.size(-2);
  int64_t head_dim = args.x.size(-1), frequencies = args.cos.size(1);
  dispatch_float("rope", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T* x = pointer<T>(args.x);
    T* y = pointer<T>(args.y);
    const C *cos = pointer<C>(args.cos), *sin = pointer<C>(args.sin);
    C sign = args.inverse ? C(-1) : C(1);
    auto rotate = args.interleaved ? rotate_interleaved<T, C> : rotate_half_split<T, C>;
    ctx.pool.parallel_for(
        tokens, std::max<int64_t>(1, kGrain / (groups * heads * head_dim)), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            for (int64_t h = 0; h < groups * heads; ++h) {
              auto place = [&](const Tensor& of) {
                return t * of.stride(0) + (grouped ? h / heads * of.stride(1) : 0) +
                       h % heads * of.stride(-2);
              };
              const T* in = x + place(args.x);
              T* out = y + place(args.y);
              rotate(in, out, cos + t * frequencies, sin + t * frequencies, sign, frequencies);
              if (in != out) std::copy(in + 2 * frequencies, in + head_dim, out + 2 * frequencies);
            }
        });
  });
}

}  // namespace

void add_rope_kernels(KernelTable& table) {
  table.rope_table = rope_table;
  table.rope = rope;
}

}  // namespace megatron::cpu::MEGATRON_ISA
