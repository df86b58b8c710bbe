#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "megatron/kernels/cpu/isa/dispatch.h"
#include "megatron/kernels/cpu/isa/lanes.h"
#include "megatron/kernels/cpu/isa/scratch.h"
#include "megatron/kernels/cpu/isa/vector.h"
#include "megatron/kernels/narrow_weight.h"

namespace megatron::cpu::MEGATRON_ISA {
namespace {

// A [rows, columns] matrix cut into blocks, worked on row by row.
struct Blocks {
  int64_t rows, columns, block_rows, block_columns, across, down;

  Blocks(const Tensor& x, int64_t height, int64_t width)
      : rows(x.size(0)),
        columns(x.size(1)),
        block_rows(height ? height : std::max<int64_t>(rows, 1)),
        block_columns(width ? width : std::max<int64_t>(columns, 1)),
        across((columns + block_columns - 1) / block_columns),
        down((rows + block_rows - 1) / block_rows) {}

  int64_t count() const { return across * down; }

  // Calls f(row, block across, begin, n): n elements from the flat index begin on lie in one block.
  template <class F>
  void for_each_run(const KernelContext& ctx, F&& f) const {
    ctx.pool.parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1)),
                          [&](int64_t first, int64_t last) {
                            for (int64_t row = first; row < last; ++row)
                              for (int64_t a = 0; a < across; ++a)
                                f(row, a, row * columns + a * block_columns,
                                  std::min(block_columns, columns - a * block_columns));
                          });
  }
};

template <class F>
void dispatch_fp8(const char* kernel, DType dtype, F&& f) {
  if (dtype == DType::F8E4M3) return f(Type<fp8_e4m3>{});
  if (dtype == DType::F8E5M2) return f(Type<fp8_e5m2>{});
  reject_dtype(kernel, dtype);
}

// int8 as another narrow format: symmetric, nearest even.
struct Int8 {
  uint8_t bits = 0;
  static constexpr float max = 127;
  explicit operator float() const { return static_cast<float>(static_cast<int8_t>(bits)); }
};

template <class Q>
void store_narrow(Q* p, Vector<float> x) {
  if constexpr (std::is_same_v<Q, Int8>) {
    // Adding 1.5 · 2²³ leaves the nearest integer in the low bits.
    const FloatBits bits = reinterpret_cast<FloatBits>(x + 12582912.f);
    *reinterpret_cast<QuarterBits*>(p) = __builtin_convertvector(bits & 0xff, QuarterBits);
  } else {
    store_as_fp8(p, x);
  }
}

template <class F>
void dispatch_fp8_or_int8(const char* kernel, DType dtype, F&& f) {
  if (dtype == DType::I8) return f(Type<Int8>{});
  dispatch_fp8(kernel, dtype, std::forward<F>(f));
}

// Clamped before the cast; written so that NaN stays NaN.
template <class Q>
Vector<float> clamp_to(Vector<float> x) {
  x = x > Q::max ? Q::max + Vector<float>{} : x;
  return x < -Q::max ? -Q::max + Vector<float>{} : x;
}

template <class T, class Q>
void quantize_run(const T* x, int64_t n, float scale, bool multiply, Q* q) {
  constexpr int64_t w = kVectorWidth<float>;
  auto scaled = [&](Vector<float> v) { return clamp_to<Q>(multiply ? v * scale : v / scale); };
  int64_t i = 0;
  if constexpr (!std::is_same_v<T, double>)
    for (; i + w <= n; i += w) store_narrow(q + i, scaled(load_as<float>(x + i)));
  for (; i < n; ++i) {
    float rest[w] = {static_cast<float>(x[i])};
    Q narrow[w];
    store_narrow(narrow, scaled(load_vector(rest)));
    q[i] = narrow[0];
  }
}

template <class T, class Q>
void quantize_as(const KernelContext& ctx, const QuantizeArgs& args) {
  Blocks blocks(args.x, args.block_rows, args.block_columns);
  const T* x = pointer<T>(args.x);
  Q* q = pointer<Q>(args.q);
  float* inverse_scale = pointer<float>(args.inverse_scale);
  Scratch<float> row_amax(ctx, blocks.rows * blocks.across);
  blocks.for_each_run(ctx, [&](int64_t row, int64_t a, int64_t begin, int64_t n) {
    row_amax.data()[row * blocks.across + a] =
        max_over<float>(n, [&](int64_t i) { return std::fabs(static_cast<float>(x[begin + i])); });
  });
  bool whole = blocks.count() == 1;
  Scratch<float> scale(ctx, blocks.count());
  for (int64_t block = 0; block < blocks.count(); ++block) {
    int64_t a = block % blocks.across, top = block / blocks.across * blocks.block_rows;
    float amax = 0;
    for (int64_t row = top; row < std::min(blocks.rows, top + blocks.block_rows); ++row)
      amax = std::max(amax, row_amax.data()[row * blocks.across + a]);
    // One rounding decides the last bit: a whole tensor is multiplied by its scale, a block divided by its
    // own.
    scale.data()[block] = amax == 0 ? 1.f : whole ? Q::max / amax : amax / Q::max;
    if (args.scale) scale.data()[block] = *pointer<float>(args.scale);
    if (float* largest = optional_pointer<float>(args.amax)) *largest = std::max(*largest, amax);
    inverse_scale[block] = whole ? 1.f / scale.data()[block] : scale.data()[block];
  }
  blocks.for_each_run(ctx, [&](int64_t row, int64_t a, int64_t begin, int64_t n) {
    float s = scale.data()[row / blocks.block_rows * blocks.across + a];
    quantize_run(x + begin, n, s, whole, q + begin);
  });
  if (!args.transposed) return;
  Q* turned = pointer<Q>(args.transposed);
  ctx.pool.parallel_for(blocks.columns, std::max<int64_t>(1, kGrain / std::max<int64_t>(blocks.rows, 1)),
                        [&](int64_t first, int64_t last) {
                          for (int64_t column = first; column < last; ++column)
                            for (int64_t row = 0; row < blocks.rows; ++row)
                              turned[column * blocks.rows + row] = q[row * blocks.columns + column];
                        });
}

// The number of largest magnitude over −8: NaN where there is one.
float int4_scale(const float (&group)[scale_columns(kInt4)]) {
  const auto bits = max_over<int32_t>(std::ssize(group),
                                      [&](int64_t i) { return std::bit_cast<int32_t>(std::fabs(group[i])); });
  const float amax = std::bit_cast<float>(bits);
  const bool positive = max_over<float>(std::ssize(group), [&](int64_t i) { return group[i]; }) == amax;
  const float scale = static_cast<float>(bf16(positive ? amax / -8 : amax / 8));
  return scale == 0 ? 1 : scale;
}

template <class T>
void quantize_int4(const KernelContext& ctx, const QuantizeArgs& args) {
  constexpr int64_t kGroup = scale_columns(kInt4);
  const Blocks blocks(args.x, 1, kGroup);
  const T* x = pointer<T>(args.x);
  bf16* scales = pointer<bf16>(args.inverse_scale);
  blocks.for_each_run(ctx, [&](int64_t row, int64_t a, int64_t begin, int64_t n) {
    float group[kGroup] = {};
    for (int64_t i = 0; i < n; ++i) group[i] = static_cast<float>(x[begin + i]);
    const float scale = int4_scale(group);
    scales[row * blocks.across + a] = bf16(scale);
    uint8_t q[kGroup];  // of what is not finite the scale tells
    for (int64_t i = 0; i < kGroup; ++i)
      q[i] = std::isfinite(scale) ? static_cast<uint8_t>(std::clamp(group[i] / scale + 8.5f, 0.f, 15.f)) : 8;
    uint8_t* target = pointer<uint8_t>(args.q) + (row * args.q.size(1) + a * kGroup / 2);
    for (int64_t i = 0; i < n; i += 2) target[i / 2] = static_cast<uint8_t>(q[i] | q[i + 1] << 4);
  });
}

void quantize(const KernelContext& ctx, const QuantizeArgs& args) {
  dispatch_float("quantize", args.x.dtype(), [&]<class T>(Type<T>) {
    if (args.q.dtype() == kInt4) return quantize_int4<T>(ctx, args);
    dispatch_fp8_or_int8("quantize", args.q.dtype(), [&]<class Q>(Type<Q>) { quantize_as<T, Q>(ctx, args); });
  });
}

template <class T, class Q>
void quantize_groups(const KernelContext& ctx, const QuantizeGroupedArgs& args) {
  const int64_t groups = args.inverse_scale.size(0), columns = args.x.size(-1);
  const int64_t rows = args.x.size(-2) * (args.offsets ? 1 : groups), grain = kGrain / columns + 1;
  const T* x = pointer<T>(args.x);
  Q *q = pointer<Q>(args.q), *transposed = pointer<Q>(args.transposed);
  Scratch<float> row_amax(ctx, rows);
  auto begin_of = [&](int64_t g) {
    return args.offsets ? pointer<int32_t>(args.offsets)[g] : rows / groups * g;
  };
  auto of_group = [](const Tensor& t, int64_t g) { return pointer<float>(t) + g * t.stride(0); };
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = begin_of(g), last = begin_of(g + 1);
    auto for_rows = [&](auto&& f) {
      ctx.pool.parallel_for(last - first, grain, [&](int64_t begin, int64_t end) {
        for (int64_t row = first + begin; row < first + end; ++row) f(row);
      });
    };
    for_rows([&](int64_t row) {
      row_amax.data()[row] = max_over<float>(
          columns, [&](int64_t i) { return std::fabs(static_cast<float>(x[row * columns + i])); });
    });
    float amax = 0;
    for (int64_t row = first; row < last; ++row) amax = std::max(amax, row_amax.data()[row]);
    const float scale = args.scale ? *of_group(args.scale, g) : amax == 0 ? 1.f : Q::max / amax;
    if (args.amax) *of_group(args.amax, g) = std::max(*of_group(args.amax, g), amax);
    *of_group(args.inverse_scale, g) = 1.f / scale;
    // Where row 0 of column 0 would be transposed to, and the step from column to column.
    Q* turned = transposed + (args.offsets ? 0 : (columns - 1) * first);
    const int64_t across = args.offsets ? rows : rows / groups;
    for_rows([&](int64_t row) {
      quantize_run(x + row * columns, columns, scale, true, q + row * columns);
      for (int64_t i = 0; i < columns; ++i) turned[i * across + row] = q[row * columns + i];
    });
  }
}

void quantize_grouped(const KernelContext& ctx, const QuantizeGroupedArgs& args) {
  if (args.x.numel() == 0) return;
  dispatch_float("quantize_grouped", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize_grouped", args.q.dtype(),
                 [&]<class Q>(Type<Q>) { quantize_groups<T, Q>(ctx, args); });
  });
}

// The largest power of two that keeps values up to amax within the format, no larger than what has an
// inverse; 0, whose inverse is infinite, where something is not finite.
template <class Q>
float power_of_two_for(float amax) {
  if (amax == 0) return 1;
  if (!(amax <= std::numeric_limits<float>::max())) return 0;
  const float factor = std::min(Q::max / amax, 0x1p126f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(factor) & 0x7f800000u);
}

template <class T, class Q>
void quantize_by_blocks(const KernelContext& ctx, const Tensor& from, const Tensor& to, const Tensor& scales,
                        int64_t block_rows) {
  const Blocks blocks(from, block_rows, 128);
  const T* x = pointer<T>(from);
  Q* q = pointer<Q>(to);
  float* inverse_scale = pointer<float>(scales);
  ctx.pool.parallel_for(
      blocks.count(), std::max<int64_t>(1, kGrain / (block_rows * 128)), [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) {
          const int64_t a = block % blocks.across, d = block / blocks.across;
          const int64_t top = d * block_rows, bottom = std::min(blocks.rows, top + block_rows);
          const int64_t n = std::min<int64_t>(128, blocks.columns - a * 128);
          auto begin = [&](int64_t row) { return row * blocks.columns + a * 128; };
          int32_t amax = 0;  // as bits, so that NaN is the largest
          for (int64_t row = top; row < bottom; ++row)
            amax = std::max(amax, max_over<int32_t>(n, [&](int64_t i) {
                              return std::bit_cast<int32_t>(std::fabs(static_cast<float>(x[begin(row) + i])));
                            }));
          const float factor = power_of_two_for<Q>(std::bit_cast<float>(amax));
          inverse_scale[d * scales.stride(0) + a * scales.stride(1)] = 1 / factor;
          for (int64_t row = top; row < bottom; ++row)
            quantize_run(x + begin(row), n, factor, true, q + begin(row));
        }
      });
}

void quantize_blocks(const KernelContext& ctx, const QuantizeBlocksArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  dispatch_float("quantize_blocks", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8("quantize_blocks", args.q.dtype(), [&]<class Q>(Type<Q>) {
      quantize_by_blocks<T, Q>(ctx, args.x, args.q, args.inverse_scale, args.block_rows);
      Scratch<T> turned(ctx, rows * columns);
      const T* x = pointer<T>(args.x);
      ctx.pool.parallel_for(columns, std::max<int64_t>(1, kGrain / std::max<int64_t>(rows, 1)),
                            [&](int64_t first, int64_t last) {
                              for (int64_t column = first; column < last; ++column)
                                for (int64_t row = 0; row < rows; ++row)
                                  turned.data()[column * rows + row] = x[row * columns + column];
                            });
      quantize_by_blocks<T, Q>(ctx,
                               Tensor::wrap(turned.data(), {columns, rows}, args.x.dtype(), args.x.device()),
                               args.transposed, args.transposed_inverse_scale, args.block_rows);
    });
  });
}

template <class T>
void dequantize_int4(const KernelContext& ctx, const DequantizeArgs& args) {
  const Blocks blocks(args.x, 1, scale_columns(kInt4));
  const bf16* scales = pointer<bf16>(args.inverse_scale);
  T* x = pointer<T>(args.x);
  blocks.for_each_run(ctx, [&](int64_t row, int64_t a, int64_t begin, int64_t n) {
    const auto scale = static_cast<float>(scales[row * args.inverse_scale.stride(0) + a]);
    const uint8_t* q = pointer<uint8_t>(args.q) + (row * args.q.size(1) + a * scale_columns(kInt4) / 2);
    for (int64_t i = 0; i < n; ++i)
      x[begin + i] = T(static_cast<float>((q[i / 2] >> i % 2 * 4 & 15) - 8) * scale);
  });
}

void dequantize(const KernelContext& ctx, const DequantizeArgs& args) {
  if (args.q.dtype() == kInt4)
    return dispatch_float("dequantize", args.x.dtype(),
                          [&]<class T>(Type<T>) { dequantize_int4<T>(ctx, args); });
  Blocks blocks(args.q, args.block_rows, args.block_columns);
  const float* inverse_scale = pointer<float>(args.inverse_scale);
  const int64_t down = args.inverse_scale.stride(0), across = args.inverse_scale.stride(1);
  dispatch_float("dequantize", args.x.dtype(), [&]<class T>(Type<T>) {
    dispatch_fp8_or_int8("dequantize", args.q.dtype(), [&]<class Q>(Type<Q>) {
      const Q* q = pointer<Q>(args.q);
      T* x = pointer<T>(args.x);
      float values[256];  // of every pattern
      for (int i = 0; i < 256; ++i) values[i] = static_cast<float>(std::bit_cast<Q>(static_cast<uint8_t>(i)));
      blocks.for_each_run(ctx, [&](int64_t row, int64_t a, int64_t begin, int64_t n) {
        float s = inverse_scale[row / blocks.block_rows * down + a * across];
        for (int64_t i = begin; i < begin + n; ++i) x[i] = T(values[q[i].bits] * s);
      });
    });
  });
}

}  // namespace

void add_quantize_kernels(KernelTable& table) {
  table.quantize = quantize;
  table.quantize_grouped = quantize_grouped;
  table.quantize_blocks = quantize_blocks;
  table.dequantize = dequantize;
}

}  // namespace megatron::cpu::MEGATRON_ISA
