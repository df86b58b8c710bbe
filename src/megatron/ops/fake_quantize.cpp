#include "megatron/ops/fake_quantize.h"

#include <algorithm>

#include "megatron/ops/check.h"

namespace megatron::ops {
namespace {

using Numbers = FakeFormat::Numbers;
using Scaled = FakeFormat::Scaled;

constexpr double kLargestFp8 = 448, kSmallestFp8 = 1.0 / 512;

double largest_of(Numbers numbers) {
  switch (numbers) {
    case Numbers::fp8:
      return kLargestFp8;
    case Numbers::int8:
      return 127;
    case Numbers::int4:
      return 7;
    case Numbers::fp4:
      return 6;
  }
  fail("fake_quantize: no such format");
}

// The rounding of one tensor: values in the accumulation dtype, [rows, columns], in place.
class Rounding {
 public:
  Rounding(RankContext& ctx, const Tensor& x, const FakeFormat& format, const FakeShare& share)
      : ctx_(ctx),
        kernels_(*ctx.kernels),
        format_(format),
        share_(share),
        wide_(accumulation_dtype(x.dtype())),
        columns_(x.size(-1)),
        rows_(columns_ > 0 ? x.numel() / columns_ : 0),
        matrices_(share.rows_alone ? rows_
                  : x.rank() == 3  ? x.size(0)
                                   : 1),
        values_(buffer({rows_, columns_})) {
    kernels_.copy(at(), {x.detach().view({rows_, columns_}), values_});
  }

  const Tensor& run() {
    const Tensor magnitude = buffer(values_.shape());
    kernels_.unary(at(), {.kind = Unary::Abs, .x = values_, .bias = {}, .y = magnitude});
    if (format_.scaled == Scaled::block) {
      scale_blocks(magnitude);
    } else {
      const bool by_row = format_.scaled == Scaled::row;
      const Tensor amax = by_row ? largest_of_rows(magnitude, columns_) : largest_of_matrices(magnitude);
      if (by_row) combine(share_.over_columns, amax);
      const int64_t count = amax.numel();
      if (values_.numel() > 0)
        round_scaled(values_.view({count, -1}), scales(amax, largest_of(format_.numbers)).view({count, 1}));
    }
    return values_;
  }

 private:
  KernelContext at() { return ctx_.kernel_context(); }
  Tensor buffer(const Shape& shape) { return ctx_.empty(shape, wide_, MemoryTag::Workspace); }
  void binary(Binary kind, const Tensor& a, const Tensor& b, const Tensor& out) {
    kernels_.binary(at(), {kind, a, b.expand(out.shape()), out});
  }
  void multiply(const Tensor& x, double factor) {
    kernels_.axpby(at(), {.alpha = factor, .a = x, .b = {}, .out = x});
  }
  void combine(const std::function<void(RankContext&, const Tensor&)>& over, const Tensor& amax) {
    if (over && amax.numel() > 0) over(ctx_, amax);
  }

  // The largest of each `width` neighbours of contiguous values.
  Tensor largest_of_rows(const Tensor& magnitude, int64_t width) {
    const int64_t count = width > 0 ? magnitude.numel() / width : 0;
    const Tensor amax = buffer({count});
    if (count > 0) kernels_.reduce(at(), {Reduction::Max, magnitude, amax, count, width, 1});
    return amax;
  }
  Tensor largest_of_matrices(const Tensor& magnitude) {
    Tensor amax;
    if (values_.numel() > 0) {
      amax = largest_of_rows(magnitude, values_.numel() / matrices_);
    } else {
      amax = buffer({matrices_});
      kernels_.fill(at(), {amax, 0});
    }
    combine(share_.over_matrix, amax);
    return amax;
  }

  // amax / largest; 1 where all is zero.
  Tensor scales(const Tensor& amax, double largest) {
    const Tensor result = buffer(amax.shape()), zero = buffer(amax.shape()), one = buffer(amax.shape());
    const Tensor empty = ctx_.empty(amax.shape(), DType::Bool, MemoryTag::Workspace);
    kernels_.fill(at(), {zero, 0});
    kernels_.fill(at(), {one, 1});
    kernels_.axpby(at(), {.alpha = 1 / largest, .a = amax, .b = {}, .out = result});
    kernels_.compare(at(), {Comparison::Equal, result, zero, empty});
    kernels_.where(at(), {empty, one, result, result});
    return result;
  }

  // Blocks are counted from the first column of the whole matrix.
  void scale_blocks(const Tensor& magnitude) {
    const int64_t block = format_.block, begin = share_.column_begin, end = begin + columns_;
    const int64_t all = std::max(share_.columns, end);
    const int64_t first = begin / block, last = (end + block - 1) / block;
    const bool aligned = begin % block == 0 && columns_ % block == 0;
    Tensor amax = buffer({rows_, (all + block - 1) / block});
    kernels_.fill(at(), {amax, 0});
    const Tensor own = amax.slice(1, first, last);
    // Columns of block b that are here.
    const auto here = [&](const Tensor& of, int64_t b) {
      return of.slice(1, std::max(b * block, begin) - begin, std::min((b + 1) * block, end) - begin);
    };
    if (aligned) {
      kernels_.copy(at(), {largest_of_rows(magnitude, block).view(own.shape()), own});
    } else {
      for (int64_t b = first; b < last; ++b) {
        const Tensor part = detach_contiguous(ctx_, here(magnitude, b));
        kernels_.copy(at(), {largest_of_rows(part, part.size(1)).view({rows_, 1}), amax.slice(1, b, b + 1)});
      }
    }
    combine(share_.over_columns, amax);
    const Tensor scale = block_scales(detach_contiguous(ctx_, amax.slice(1, first, last)), magnitude);
    if (values_.numel() == 0) return;
    if (aligned) return round_scaled(values_.view({-1, block}), scale.view({scale.numel(), 1}));
    const Tensor each = buffer(values_.shape());
    for (int64_t b = first; b < last; ++b) {
      const Tensor part = here(each, b);
      kernels_.copy(at(), {scale.slice(1, b - first, b - first + 1).expand(part.shape()), part});
    }
    round_scaled(values_, each);
  }

  Tensor block_scales(const Tensor& amax, const Tensor& magnitude) {
    const Tensor scale = scales(amax, largest_of(format_.numbers));
    if (!format_.narrow_scales) return scale;
    const Tensor top = scales(largest_of_matrices(magnitude), largest_of(format_.numbers) * kLargestFp8);
    if (scale.numel() == 0) return scale;
    const Tensor by_matrix = scale.view({matrices_, -1}), unit = top.view({matrices_, 1});
    binary(Binary::Div, by_matrix, unit, by_matrix);
    const Tensor least = buffer({1});
    kernels_.fill(at(), {least, kSmallestFp8});
    const Tensor flat = scale.view({scale.numel()});
    binary(Binary::Max, flat, least, flat);
    narrow(scale, DType::F8E4M3);
    binary(Binary::Mul, by_matrix, unit, by_matrix);
    return scale;
  }

  void round_scaled(const Tensor& values, const Tensor& scale) {
    binary(Binary::Div, values, scale, values);
    round(values_);
    binary(Binary::Mul, values, scale, values);
  }

  void round(const Tensor& x) {
    switch (format_.numbers) {
      case Numbers::fp8:
        return narrow(x, DType::F8E4M3);
      case Numbers::int8:
      case Numbers::int4:
        return to_integers(x);
      case Numbers::fp4:
        return to_fp4(x);
    }
  }

  // x [rows, columns] through another dtype, which holds it without a scale.
  void narrow(const Tensor& x, DType dtype) {
    const Tensor q = ctx_.empty(x.shape(), dtype, MemoryTag::Workspace);
    const Tensor inverse = ctx_.empty({1, 1}, DType::F32, MemoryTag::Workspace);
    const Tensor one = ctx_.full({1}, DType::F32, 1, MemoryTag::Workspace);
    kernels_.quantize(at(),
                      {.x = x, .q = q, .inverse_scale = inverse, .transposed = {}, .scale = one, .amax = {}});
    kernels_.dequantize(at(), {q, inverse, x});
  }

  // The nearest integer of up to 127, even where two are; NaN stays NaN.
  void to_integers(const Tensor& x) {
    const Tensor before = buffer(x.shape());
    const Tensor number = ctx_.empty(x.shape(), DType::Bool, MemoryTag::Workspace);
    kernels_.copy(at(), {x, before});
    narrow(x, DType::I8);
    kernels_.compare(at(), {Comparison::Equal, before, before, number});
    kernels_.where(at(), {number, x, before, x});
  }

  // 0, ½, 1, 1½, 2, 3, 4, 6: halves up to 2, integers up to 4, then even ones.
  void to_fp4(const Tensor& x) {
    const Tensor size = buffer(x.shape()), bound = buffer({1});
    const Tensor below = ctx_.empty(x.shape(), DType::Bool, MemoryTag::Workspace);
    kernels_.unary(at(), {.kind = Unary::Abs, .x = x, .bias = {}, .y = size});
    const auto steps_of = [&](double step) {
      const Tensor result = buffer(x.shape());
      kernels_.axpby(at(), {.alpha = 1 / step, .a = x, .b = {}, .out = result});
      to_integers(result);
      multiply(result, step);
      return result;
    };
    const auto where_below = [&](double limit, const Tensor& value, const Tensor& otherwise) {
      kernels_.fill(at(), {bound, limit});
      kernels_.compare(at(), {Comparison::Less, size, bound.view({1, 1}).expand(size.shape()), below});
      kernels_.where(at(), {below, value, otherwise, otherwise});
    };
    const Tensor coarse = steps_of(2);
    where_below(4, steps_of(1), coarse);
    where_below(2, steps_of(0.5), coarse);
    kernels_.copy(at(), {coarse, x});
  }

  RankContext& ctx_;
  const KernelTable& kernels_;
  const FakeFormat& format_;
  const FakeShare& share_;
  DType wide_;
  int64_t columns_, rows_, matrices_;
  Tensor values_;
};

class FakeQuantizeNode final : public Node {
 public:
  explicit FakeQuantizeNode(GradSlot x_slot) : x_slot_(x_slot) {}
  const char* name() const override { return "fake_quantize"; }
  void backward_data(RankContext& ctx, Tape& tape) override {
    tape.add_grad(ctx, x_slot_, tape.take_grad(output()));
  }

 private:
  GradSlot x_slot_;
};

void round_into(RankContext& ctx, const Tensor& x, const FakeFormat& format, const FakeShare& share,
                const Tensor& out) {
  check_input(ctx, "fake_quantize", "x", x);
  check_floating("fake_quantize", "x", x);
  require(x.rank() == 2 || x.rank() == 3, "fake_quantize: x is {}, but it must be [.., rows, columns]", x);
  require(format.scaled != Scaled::block || format.block > 0, "fake_quantize: blocks of {} columns",
          format.block);
  Rounding rounding(ctx, detach_contiguous(ctx, x), format, share);
  ctx.kernels->copy(ctx.kernel_context(), {rounding.run().view(x.shape()), out});
  trace(ctx, "fake_quantize", Phase::Other, 8.0 * static_cast<double>(x.numel()), {&x, &x, &out});
}

}  // namespace

Tensor fake_quantize(RankContext& ctx, const Tensor& x, const FakeFormat& format, const FakeShare& share) {
  Tensor y = ctx.empty(x.shape(), x.dtype());
  round_into(ctx, x, format, share, y);
  if (needs_grad(ctx, {&x})) record(ctx, std::make_unique<FakeQuantizeNode>(x.grad_slot()), y);
  return y;
}

const Tensor& FakeQuantizer::rounded(RankContext& ctx, const Tensor& weight_value) {
  if (current_) return value_;
  if (!value_) value_ = ctx.empty(weight_value.shape(), weight_value.dtype(), MemoryTag::Parameter);
  round_into(ctx, weight_value, weight, weight_share, value_);
  current_ = true;
  return value_;
}

}  // namespace megatron::ops
