#include "megatron/kernels/cpu/isa/blocks.h"
#include "megatron/kernels/cpu/isa/strided.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// Uniform numbers of the indices [first, first + n): word i % 4 of counter i / 4. n ≤ kBlock.
void uniform_block(RngKey key, uint64_t first, int64_t n, float* out) {
  constexpr int64_t counters = kBlock / 4 + 1;
  uint32_t words[4][counters];
  uint64_t begin = first / 4;
  int64_t count = static_cast<int64_t>((first + n + 3) / 4 - begin);
  for (int64_t c = 0; c < count; ++c) {
    Philox random = Philox::at(key, begin + c);
    for (int w = 0; w < 4; ++w) words[w][c] = random.word[w];
  }
  int64_t skip = static_cast<int64_t>(first % 4);
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<float>(words[(i + skip) % 4][(i + skip) / 4] >> 8) * 0x1p-24f;
}

void dropout(const KernelContext& ctx, const DropoutArgs& args) {
  int64_t columns = args.x.size(-1), rows = columns ? args.x.numel() / columns : 0;
  dispatch_float("dropout", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const T *x = pointer<T>(args.x), *residual = optional_pointer<T>(args.residual);
    T* y = pointer<T>(args.y);
    const int64_t* places = optional_pointer<int64_t>(args.rows);
    float p = static_cast<float>(args.p);
    C scale = args.p < 1 ? C(1 / (1 - args.p)) : C(0);
    const RngKey key = args.key.resolved();
    for_each_block(ctx, rows, columns, [&](int64_t offset, int64_t column, int64_t n) {
      float uniform[kBlock];
      int64_t row = offset / columns;
      if (places) row = places[row];
      int64_t first = (row + args.row_begin) * args.global_columns + column + args.column_begin;
      uniform_block(key, static_cast<uint64_t>(first), n, uniform);
      if (residual) {
        for (int64_t i = 0; i < n; ++i) {
          C kept = uniform[i] >= p ? C(x[offset + i]) * scale : C(0);
          y[offset + i] = T(kept + C(residual[offset + i]));
        }
      } else {
        for (int64_t i = 0; i < n; ++i) y[offset + i] = T(uniform[i] >= p ? C(x[offset + i]) * scale : C(0));
      }
    });
  });
}

void random(const KernelContext& ctx, const RandomArgs& args) {
  StridedWalk<2> walk(args.out.shape(), {&args.out.strides(), &args.global_strides});
  int64_t step = walk.inner()[1];
  const RngKey key = args.key.resolved();
  dispatch_float("random", args.out.dtype(), [&]<class T>(Type<T>) {
    T* out = pointer<T>(args.out);
    walk.run_parallel(ctx, [&](const auto& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        Philox words = Philox::at(key, static_cast<uint64_t>(args.base + at[1] + i * step));
        double value = args.kind == Distribution::Normal ? args.a + args.b * words.normal()
                                                         : args.a + (args.b - args.a) * words.uniform(0);
        out[at[0] + i] = T(static_cast<Compute<T>>(value));
      }
    });
  });
}

}  // namespace

void add_random_kernels(KernelTable& table) {
  table.dropout = dropout;
  table.random = random;
}

}  // namespace megatron::cpu::MEGATRON_ISA
