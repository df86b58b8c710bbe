#include <cmath>
#include <limits>

#include "megatron/kernels/cuda/core/strided.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct DropoutOp {
  const T *x, *residual;
  T* y;
  uint32_t threshold;  // kept: the upper 24 bits are not below it, as a uniform number is not below p
  Compute<T> scale;
  RngKey key;
  int64_t columns, row_begin, column_begin, global_columns;
  const int64_t* rows;

  // Where an element stands in the global matrix, and how many of its row are left. Whole rows that follow
  // each other need no division.
  struct Place {
    uint64_t at;
    int64_t left;
  };
  __device__ Place place_of(int64_t i) const {
    if (!rows && columns == global_columns)
      return {static_cast<uint64_t>(row_begin * columns + i), std::numeric_limits<int64_t>::max()};
    const int64_t row = divide(i, columns), column = i - row * columns;
    const int64_t place = (rows ? rows[row] : row) + row_begin;
    return {static_cast<uint64_t>(place * global_columns + column_begin + column), columns - column};
  }

  template <int W>
  __device__ void run(int64_t i) const {
    using C = Compute<T>;
    const Place place = place_of(i);
    if (W > 1 && (W % 4 || place.at % 4 || place.left < W)) {  // not whole counters
#pragma unroll 1
      for (int j = 0; j < W; ++j) run<1>(i + j);
      return;
    }
    C value[W], other[W];
    load(value, x + i);
    if (residual) load(other, residual + i);
    const RngKey now = key.resolved();
    auto drop = [&](C& x, uint32_t bits) { x = bits >> 8 >= threshold ? x * scale : C(0); };
    if constexpr (W == 1) {
      const Philox words = Philox::at(now, place.at / 4);
      const auto word = static_cast<int>(place.at & 3);
      drop(value[0],
           word < 2 ? (word ? words.word[1] : words.word[0]) : (word == 2 ? words.word[2] : words.word[3]));
    } else {
#pragma unroll
      for (int j = 0; j + 3 < W; j += 4) {
        const Philox words = Philox::at(now, place.at / 4 + j / 4);
#pragma unroll
        for (int word = 0; word < 4; ++word) drop(value[j + word], words.word[word]);
      }
    }
    if (residual) {
#pragma unroll
      for (int j = 0; j < W; ++j) value[j] += other[j];
    }
    store(y + i, value);
  }
};

void dropout(const KernelContext& ctx, const DropoutArgs& args) {
  dispatch_float("dropout", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    DropoutOp<T> op{pointer<T>(args.x),
                    pointer<T>(args.residual),
                    pointer<T>(args.y),
                    static_cast<uint32_t>(std::ceil(static_cast<float>(args.p) * 0x1p24)),
                    args.p < 1 ? static_cast<C>(1 / (1 - args.p)) : C(0),
                    args.key,
                    args.x.size(-1),
                    args.row_begin,
                    args.column_begin,
                    args.global_columns,
                    pointer<int64_t>(args.rows)};
    for_each<kVector<T>>(ctx, "dropout", args.x.numel(),
                         aligned(op.x) && aligned(op.residual) && aligned(op.y), op);
  });
}

template <class T>
struct RandomOp {
  Distribution kind;
  T* out;
  double a, b;
  RngKey key;
  int64_t base;
  StridedIndex<1> global;

  template <int W>
  __device__ void run(int64_t i) const {
    int64_t at[1];
    global.offsets(i, at);
    Philox words = Philox::at(key.resolved(), static_cast<uint64_t>(base + at[0]));
    double value = kind == Distribution::Normal ? a + b * words.normal() : a + (b - a) * words.uniform(0);
    out[i] = narrow<T>(static_cast<Compute<T>>(value));
  }
};

void random(const KernelContext& ctx, const RandomArgs& args) {
  dispatch_float("random", args.out.dtype(), [&]<class T>(Type<T>) {
    for_each<1>(ctx, "random", args.out.numel(), false,
                RandomOp<T>{args.kind,
                            pointer<T>(args.out),
                            args.a,
                            args.b,
                            args.key,
                            args.base,
                            {args.out.shape(), {&args.global_strides}}});
  });
}

}  // namespace

void add_random_kernels(KernelTable& table) {
  table.dropout = dropout;
  table.random = random;
}

}  // namespace megatron::cuda
