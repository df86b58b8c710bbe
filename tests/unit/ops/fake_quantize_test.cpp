#include "megatron/ops/fake_quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/ops/linear.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using ops::FakeFormat;
using testing::gradcheck;
using testing::random_tensor;
using testing::TestWeight;
using Numbers = FakeFormat::Numbers;
using Scaled = FakeFormat::Scaled;

constexpr FakeFormat kNvfp4{
    .numbers = Numbers::fp4, .scaled = Scaled::block, .block = 16, .narrow_scales = true};
constexpr FakeFormat kInt4{.numbers = Numbers::int4, .scaled = Scaled::block, .block = 8};

const std::vector<FakeFormat>& formats() {
  static const std::vector<FakeFormat> all = {{},
                                              {.scaled = Scaled::row},
                                              {.numbers = Numbers::int8},
                                              {.numbers = Numbers::int8, .scaled = Scaled::row},
                                              kInt4,
                                              kNvfp4};
  return all;
}

TEST(FakeQuantize, IntegersByTheDefinition) {
  RankContext ctx(testing::test_device());
  constexpr int64_t rows = 5, columns = 20, block = 8;
  const Tensor x = random_tensor(ctx, {rows, columns}, 1, DType::F64, 3);
  const auto values = ctx.to_vector<double>(x),
             rounded = ctx.to_vector<double>(ops::fake_quantize(ctx, x, kInt4));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < columns; begin += block) {
      const int64_t end = std::min(begin + block, columns);
      double amax = 0;
      for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(values[row * columns + i]));
      for (int64_t i = begin; i < end; ++i)
        EXPECT_NEAR(rounded[row * columns + i],
                    std::nearbyint(values[row * columns + i] / (amax / 7)) * amax / 7, 1e-14);
    }
}

// Every number of fp4 stays, and what lies between two goes to the nearer one, or to the even one.
TEST(FakeQuantize, NumbersOfFourBits) {
  RankContext ctx(testing::test_device());
  const FakeFormat plain{.numbers = Numbers::fp4};
  const std::vector<double> from = {0,    0.5,  1,    1.5,  2,   3,   4, 6,    -6,    0.24,  0.25,
                                    0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.01, -2.51, -0.75, -1.25};
  const std::vector<double> to = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -6, 0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, -3, -1, -1};
  const auto rounded =
      ctx.to_vector<double>(ops::fake_quantize(ctx, ctx.from_vector(from, {1, std::ssize(from)}), plain));
  for (size_t i = 0; i < from.size(); ++i) EXPECT_NEAR(rounded[i], to[i], 1e-15) << from[i];
}

TEST(FakeQuantize, NoFurtherThanHalfAStep) {
  RankContext ctx(testing::test_device(), 2);
  const std::vector<double> relative = {0x1p-4,    0x1p-4,  0.5 / 127,
                                        0.5 / 127, 0.5 / 7, 0.2};  // of the largest
  for (size_t f = 0; f < formats().size(); ++f)
    for (const DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
      const Tensor x = random_tensor(ctx, {24, 40}, 1, dtype, 2);
      const auto wide = [&](const Tensor& tensor) {
        const Tensor result = ctx.empty(tensor.shape(), DType::F64);
        ctx.kernels->copy(ctx.kernel_context(), {tensor, result});
        return ctx.to_vector<double>(result);
      };
      const auto before = wide(x), after = wide(ops::fake_quantize(ctx, x, formats()[f]));
      bool changed = false;
      for (size_t i = 0; i < before.size(); ++i) {
        ASSERT_NEAR(after[i], before[i], 2.02 * relative[f] + 0x1p-7) << fmt::format("{} {}", f, dtype);
        changed |= after[i] != before[i];
      }
      EXPECT_TRUE(changed);
    }
}

TEST(FakeQuantize, ZerosAndNaN) {
  RankContext ctx(testing::test_device());
  for (const FakeFormat& format : formats()) {
    for (const double value :
         ctx.to_vector<double>(ops::fake_quantize(ctx, ctx.zeros({3, 16}, DType::F64), format)))
      EXPECT_EQ(value, 0);
    std::vector<double> values(16, 1);
    values[3] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(
        ctx.to_vector<double>(ops::fake_quantize(ctx, ctx.from_vector(values, {1, 16}), format))[3]));
  }
}

// Parts of a matrix, of whole rows or of columns that no block ends at, round as the whole one does.
TEST(FakeQuantize, PartsRoundAsTheWhole) {
  RankContext ctx(testing::test_device());
  const Tensor x = random_tensor(ctx, {6, 40}, 1, DType::F64, 3);
  const auto copy = [&](const Tensor& from) {
    const Tensor result = ctx.empty(from.shape(), from.dtype());
    ctx.kernels->copy(ctx.kernel_context(), {from, result});
    return result;
  };
  const auto put = [&](const Tensor& from, const Tensor& to) {
    ctx.kernels->copy(ctx.kernel_context(), {from, to});
  };
  for (const FakeFormat& format : formats()) {
    const auto whole = ctx.to_vector<double>(ops::fake_quantize(ctx, x, format));
    for (const bool by_columns : {false, true}) {
      const int dim = by_columns ? 1 : 0;
      const int64_t cut = by_columns ? 21 : 2, size = x.size(dim);
      // What each part asks for is answered by what both had when they were asked alone.
      std::vector<std::vector<Tensor>> asked(2);
      Tensor result = ctx.empty(x.shape(), DType::F64);
      for (const bool answers : {false, true, true, true})
        for (int part = 0; part < 2; ++part) {
          const int64_t begin = part ? cut : 0, end = part ? size : cut;
          size_t at = 0;
          std::vector<Tensor> own;
          const auto largest = [&](RankContext&, const Tensor& amax) {
            own.push_back(copy(amax));
            if (answers)
              ctx.kernels->binary(ctx.kernel_context(), {Binary::Max, amax, asked[1 - part][at], amax});
            ++at;
          };
          ops::FakeShare share{.over_matrix = largest};
          if (by_columns) share.column_begin = begin, share.columns = size, share.over_columns = largest;
          put(ops::fake_quantize(ctx, copy(x.slice(dim, begin, end)), format, share),
              result.slice(dim, begin, end));
          asked[static_cast<size_t>(part)] = own;
        }
      EXPECT_EQ(ctx.to_vector<double>(result), whole);
    }
  }
}

// Matrices of experts by themselves, and rows as matrices.
TEST(FakeQuantize, EachMatrixByItself) {
  RankContext ctx(testing::test_device());
  const Tensor x = random_tensor(ctx, {3, 4, 32}, 1, DType::F64, 3);
  for (const FakeFormat& format : formats()) {
    const auto all = ctx.to_vector<double>(ops::fake_quantize(ctx, x, format));
    for (int64_t e = 0; e < 3; ++e) {
      const auto one = ctx.to_vector<double>(ops::fake_quantize(ctx, x.select(0, e), format));
      for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(all[static_cast<size_t>(e) * one.size() + i], one[i]);
    }
    const Tensor rows = x.view({12, 32});
    const auto alone = ctx.to_vector<double>(ops::fake_quantize(ctx, rows, format, {.rows_alone = true}));
    for (int64_t row = 0; row < 12; ++row) {
      const auto one = ctx.to_vector<double>(ops::fake_quantize(ctx, rows.slice(0, row, row + 1), format));
      for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(alone[static_cast<size_t>(row) * 32 + i], one[i]);
    }
  }
}

// Gradients are those at the rounded values, passed on as if nothing had been rounded.
TEST(FakeQuantize, GradientsPassStraightThrough) {
  RankContext ctx(testing::test_device());
  for (const FakeFormat& format : formats()) {
    const Tensor x = random_tensor(ctx, {6, 32}, 1), w = random_tensor(ctx, {8, 32}, 2),
                 dy = random_tensor(ctx, {6, 8}, 3);
    const Tensor rounded_x = ops::fake_quantize(ctx, x, format),
                 rounded_w = ops::fake_quantize(ctx, w, format);
    const auto gradients = [&](bool rounds) {
      TestWeight weight(ctx, rounded_w);
      Tape tape(ctx);
      const Tensor input = tape.watch(rounds ? x : rounded_x);
      {
        TapeScope scope(ctx, &tape);
        const Tensor y =
            ops::linear(ctx, rounds ? ops::fake_quantize(ctx, input, format) : input, weight.get());
        tape.backward(ctx, y, dy);
      }
      return std::pair{ctx.to_vector<double>(tape.grad(input)),
                       ctx.to_vector<double>(weight.accumulator.main_grad)};
    };
    EXPECT_EQ(gradients(true), gradients(false));
    gradcheck(ctx,
              [](RankContext& ctx, const std::vector<Tensor>& x, const std::vector<Weight>& w) {
                return std::vector<Tensor>{ops::linear(ctx, x[0], w[0])};
              },
              {rounded_x}, {rounded_w});
  }
}

TEST(FakeQuantize, AWeightIsRoundedAgainWhenItHasChanged) {
  RankContext ctx(testing::test_device());
  ops::FakeQuantizer quantizer;
  quantizer.weight = kInt4;
  Tensor w = random_tensor(ctx, {4, 16}, 1);
  const auto first = ctx.to_vector<double>(quantizer.rounded(ctx, w));
  EXPECT_EQ(first, ctx.to_vector<double>(ops::fake_quantize(ctx, w, kInt4)));
  ctx.kernels->copy(ctx.kernel_context(), {random_tensor(ctx, {4, 16}, 2), w});
  EXPECT_EQ(ctx.to_vector<double>(quantizer.rounded(ctx, w)), first);
  quantizer.forget();
  EXPECT_EQ(ctx.to_vector<double>(quantizer.rounded(ctx, w)),
            ctx.to_vector<double>(ops::fake_quantize(ctx, w, kInt4)));
}

}  // namespace
}  // namespace megatron
