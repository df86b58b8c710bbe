#include "megatron/kernels/cuda/strided.cuh"

namespace megatron::cuda {
namespace {

template <class T>
struct DropoutOp {
  const T *x, *residual;
  T* y;
  float p;
  Compute<T> scale;
  RngKey key;
  int64_t columns, row_begin, column_begin, global_columns;
  const int64_t* rows;

  __device__ int64_t place_of(int64_t row) const { return (rows ? rows[row] : row) + row_begin; }

  template <int W>
  __device__ void run(int64_t i) const {
    using C = Compute<T>;
    C value[W], other[W];
    load(value, x + i);
    if (residual) load(other, residual + i);
    int64_t row = i / columns, column = i - row * columns;
    uint64_t at = static_cast<uint64_t>(place_of(row) * global_columns + column + column_begin);
    auto drop = [&](C& x, uint32_t bits) {
      x = static_cast<float>(bits >> 8) * 0x1p-24f >= p ? x * scale : C(0);
    };
    if (W % 4 == 0 && at % 4 == 0 && column + W <= columns) {  // whole counters
#pragma unroll
      for (int j = 0; j + 3 < W; j += 4) {
        Philox words = Philox::at(key, at / 4 + j / 4);
#pragma unroll
        for (int word = 0; word < 4; ++word) drop(value[j + word], words.word[word]);
      }
    } else {
      for (int j = 0; j < W; ++j) {
        at = static_cast<uint64_t>(place_of(row) * global_columns + column + column_begin);
        Philox words = Philox::at(key, at / 4);
        int word = static_cast<int>(at & 3);
        drop(value[j],
             word < 2 ? (word ? words.word[1] : words.word[0]) : (word == 2 ? words.word[2] : words.word[3]));
        if (++column == columns) column = 0, ++row;
      }
    }
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (residual) value[j] += other[j];
    store(y + i, value);
  }
};

void dropout(const KernelContext& ctx, const DropoutArgs& args) {
  dispatch_float("dropout", args.x.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    DropoutOp<T> op{pointer<T>(args.x),
                    pointer<T>(args.residual),
                    pointer<T>(args.y),
                    static_cast<float>(args.p),
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
    Philox words = Philox::at(key, static_cast<uint64_t>(base + at[0]));
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
