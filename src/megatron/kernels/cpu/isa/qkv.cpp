#include "megatron/kernels/cpu/isa/dispatch.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// One head: copies `head_dim` values, the first 2 · half of them rotated by the angles (sign −1 turns back).
template <class T>
void rotate_head(const T* from, T* to, int64_t head_dim, const Compute<T>* cos, const Compute<T>* sin,
                 int64_t half, Compute<T> sign, bool interleaved) {
  using C = Compute<T>;
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      C a = from[2 * i], b = from[2 * i + 1], c = cos[i], s = sign * sin[i];
      to[2 * i] = T(a * c - b * s);
      to[2 * i + 1] = T(b * c + a * s);
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      C a = from[i], b = from[half + i], c = cos[i], s = sign * sin[i];
      to[i] = T(a * c - b * s);
      to[half + i] = T(b * c + a * s);
    }
  }
  for (int64_t i = 2 * half; i < head_dim; ++i) to[i] = from[i];
}

template <class T>
void split(const KernelContext& ctx, const QkvSplitArgs& args) {
  using C = Compute<T>;
  int64_t tokens = args.k.size(0), groups = args.k.size(1), head_dim = args.k.size(2);
  int64_t per_group = args.q.size(1) / groups, half = args.cos ? args.cos.size(1) : 0;
  const C *cos = half ? pointer<C>(args.cos) : nullptr, *sin = half ? pointer<C>(args.sin) : nullptr;
  T *qkv = pointer<T>(args.qkv), *q = pointer<T>(args.q), *k = pointer<T>(args.k), *v = pointer<T>(args.v);
  C sign = args.merge ? C(-1) : C(1);
  int64_t row = groups * (per_group + 2) * head_dim;
  ctx.pool.parallel_for(tokens, std::max<int64_t>(1, kGrain / row), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* fused = qkv + t * row;
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t i = 0; i < per_group + 2; ++i, fused += head_dim) {
          T* head = i < per_group ? q + ((t * groups + g) * per_group + i) * head_dim
                                  : (i == per_group ? k : v) + (t * groups + g) * head_dim;
          int64_t rotated = i <= per_group ? half : 0;
          rotate_head<T>(args.merge ? head : fused, args.merge ? fused : head, head_dim, cos + t * half,
                         sin + t * half, rotated, sign, args.interleaved);
        }
      }
    }
  });
}

void qkv_split(const KernelContext& ctx, const QkvSplitArgs& args) {
  dispatch_float("qkv_split", args.qkv.dtype(), [&]<class T>(Type<T>) { split<T>(ctx, args); });
}

}  // namespace

void add_qkv_kernels(KernelTable& table) { table.qkv_split = qkv_split; }

}  // namespace megatron::cpu::MEGATRON_ISA
