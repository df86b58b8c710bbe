#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron/ops/linear.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"
#include "unit/ops/fp8_accum.h"

// fp8 with a scale per block, against plain loops in double.
namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;
using testing::to_doubles;

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;

  double at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
  Matrix transposed() const {
    Matrix t{columns, rows, {}};
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) t.values.push_back(at(r, c));
    return t;
  }
};

Matrix matrix_of(RankContext& ctx, const Tensor& x) { return {x.size(0), x.size(1), to_doubles(ctx, x)}; }

double cast(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  return dtype == DType::F8E4M3 ? static_cast<float>(fp8_e4m3(narrow)) : static_cast<float>(fp8_e5m2(narrow));
}

// x rounded in blocks; `scales` becomes one over the power of two of each.
Matrix rounded(const Matrix& x, int64_t block_rows, DType dtype, Matrix* scales = nullptr) {
  const double largest = dtype == DType::F8E4M3 ? 448 : 57344;
  Matrix result = x;
  if (scales) *scales = {(x.rows + block_rows - 1) / block_rows, (x.columns + 127) / 128, {}};
  for (int64_t top = 0; top < x.rows; top += block_rows)
    for (int64_t left = 0; left < x.columns; left += 128) {
      auto each = [&](auto&& f) {
        for (int64_t r = top; r < std::min(x.rows, top + block_rows); ++r)
          for (int64_t c = left; c < std::min<int64_t>(x.columns, left + 128); ++c)
            f(result.values[static_cast<size_t>(r * x.columns + c)]);
      };
      double amax = 0;
      each([&](double& v) { amax = std::max(amax, std::abs(v)); });
      double factor = 1;
      if (amax > 0) {
        while (amax * factor * 2 <= largest) factor *= 2;
        while (amax * factor > largest) factor /= 2;
      }
      each([&](double& v) { v = cast(v * factor, dtype) / factor; });
      if (scales) scales->values.push_back(1 / factor);
    }
  return result;
}

// a · bᵀ
Matrix matmul(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.rows, {}};
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < b.rows; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < a.columns; ++k) sum += a.at(i, k) * b.at(j, k);
      c.values.push_back(sum);
    }
  return c;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(difference / size);
}

// Magnitudes from 2⁻²⁰ to 2²⁰ between blocks.
Tensor varied(RankContext& ctx, int64_t rows, int64_t columns, uint64_t seed) {
  auto values = ctx.to_vector<float>(random_tensor(ctx, {rows, columns}, seed, DType::F32, 1));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      values[static_cast<size_t>(r * columns + c)] *=
          std::exp2f(static_cast<float>((r / 16 * 7 + c / 16 * 11) % 41 - 20));
  return ctx.from_vector(values, {rows, columns});
}

class Fp8Blocks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::multiplies_fp8(ctx.device, true))
      GTEST_SKIP() << "this GPU multiplies no such matrices: NOT tested";
  }
  RankContext ctx{testing::test_device(), 2};
};

TEST_F(Fp8Blocks, EachHasThePowerOfTwoThatFits) {
  for (DType dtype : {DType::F8E4M3, DType::F8E5M2})
    for (auto [rows, columns] : {std::pair<int64_t, int64_t>{256, 384}, {272, 144}, {16, 80}, {7, 5}})
      for (int64_t block_rows : {1, 128}) {
        Tensor x = varied(ctx, rows, columns, 3);
        ctx.kernels->fill(ctx.kernel_context(), {x.slice(0, 0, 1), 0});
        ops::Operand got;
        ops::to_fp8_blocks(ctx, x, dtype, block_rows, got);
        const Matrix wide = matrix_of(ctx, x);
        auto check = [&](const Matrix& from, const Tensor& q, const Tensor& scale, const char* what) {
          Matrix scales;
          const Matrix expected = rounded(from, block_rows, dtype, &scales);
          EXPECT_EQ(matrix_of(ctx, scale).values, scales.values) << what;
          Tensor back = ctx.empty(q.shape(), DType::F32);
          ctx.kernels->dequantize(ctx.kernel_context(), {q, scale, back, block_rows, 128});
          EXPECT_EQ(matrix_of(ctx, back).values, expected.values) << what;
          // As GEMMs read them.
          EXPECT_EQ(scale.stride(block_rows == 1 ? 0 : 1), 1) << what;
          EXPECT_EQ(scale.stride(block_rows == 1 ? 1 : 0) % (block_rows == 1 ? from.rows : 4), 0) << what;
        };
        check(wide, got.data, got.inverse_scale, "as it is");
        check(wide.transposed(), got.transposed, got.transposed_scale, "transposed");
      }
}

TEST_F(Fp8Blocks, WhatIsNotFiniteMakesItsBlockNaN) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(2 * 256, 3);
    values[5] = bad;
    Tensor x = ctx.from_vector(values, {2, 256}), back = ctx.empty({2, 256}, DType::F32);
    ops::Operand got;
    ops::to_fp8_blocks(ctx, x, DType::F8E4M3, 1, got);
    ctx.kernels->dequantize(ctx.kernel_context(), {got.data, got.inverse_scale, back, 1, 128});
    const auto there = ctx.to_vector<float>(back);
    for (size_t i = 0; i < there.size(); ++i)
      EXPECT_TRUE(i < 128 ? std::isnan(there[i]) : there[i] == 3) << i;
  }
}

// The three GEMMs are those of the rounded matrices: rows of x and dy along what each GEMM sums over,
// squares of the weight.
TEST_F(Fp8Blocks, ALinearOfRoundedMatrices) {
  for (auto [tokens, in, out] :
       {std::tuple<int64_t, int64_t, int64_t>{256, 128, 256}, {144, 272, 160}, {32, 48, 64}})
    for (DType gradient : {DType::F8E5M2, DType::F8E4M3}) {
      Tensor x = varied(ctx, tokens, in, 1), dy = varied(ctx, tokens, out, 2), w = varied(ctx, out, in, 3),
             b = random_tensor(ctx, {out}, 4, DType::F32);
      TestWeight weight(ctx, w), bias(ctx, b);
      ops::Fp8Weight fp8{.gradient = gradient, .blocks = true, .matrix = {}};
      Tensor y, dx;
      for (int time = 0; time < 2; ++time) {  // weight gradients add up
        Tape tape(ctx);
        Tensor input = tape.watch(x);
        {
          TapeScope scope(ctx, &tape);
          y = ops::call_linear(ctx, input, weight.get(), {.bias = bias.get(), .fp8 = &fp8}).y;
        }
        tape.backward(ctx, y, dy);
        dx = tape.grad(input);
      }
      const Matrix mx = matrix_of(ctx, x), mdy = matrix_of(ctx, dy), mw = matrix_of(ctx, w);
      const Matrix wide_w = rounded(mw, 128, DType::F8E4M3);
      Matrix wanted = matmul(rounded(mx, 1, DType::F8E4M3), wide_w);
      const auto added = ctx.to_vector<float>(b);
      for (int64_t i = 0; i < tokens * out; ++i)
        wanted.values[static_cast<size_t>(i)] += added[static_cast<size_t>(i % out)];
      EXPECT_LT(distance(matrix_of(ctx, y.detach()).values, wanted.values), testing::sum_error(ctx.device));
      EXPECT_LT(
          distance(matrix_of(ctx, dx).values, matmul(rounded(mdy, 1, gradient), wide_w.transposed()).values),
          testing::sum_error(ctx.device));
      Matrix dw = matmul(rounded(mdy.transposed(), 1, gradient), rounded(mx.transposed(), 1, DType::F8E4M3));
      for (double& v : dw.values) v *= 2;
      EXPECT_LT(distance(matrix_of(ctx, weight.accumulator.main_grad).values, dw.values),
                testing::sum_error(ctx.device));
      // And rounding in blocks is close, whatever their magnitudes.
      EXPECT_LT(distance(matmul(rounded(mx, 1, DType::F8E4M3), wide_w).values, matmul(mx, mw).values), 0.04);
    }
}

// Errors against GEMMs of unrounded matrices, whose tokens and channels have magnitudes of their own.
// Blocks need no wide range, so gradients may keep a bit more than with one scale for all.
TEST_F(Fp8Blocks, AreNearerThanOneScale) {
  const int64_t tokens = 256, in = 256, out = 384;
  auto uneven = [&](int64_t rows, int64_t columns, uint64_t seed, double spread) {
    auto values = ctx.to_vector<float>(random_tensor(ctx, {rows, columns}, seed, DType::F32, 1));
    auto by_row = ctx.to_vector<float>(random_tensor(ctx, {rows}, seed + 1, DType::F32, spread)),
         by_column = ctx.to_vector<float>(random_tensor(ctx, {columns}, seed + 2, DType::F32, spread));
    for (int64_t i = 0; i < rows * columns; ++i)
      values[static_cast<size_t>(i)] *=
          std::exp2f(by_row[static_cast<size_t>(i / columns)] + by_column[static_cast<size_t>(i % columns)]);
    return ctx.from_vector(values, {rows, columns});
  };
  Tensor x = uneven(tokens, in, 10, 3), dy = uneven(tokens, out, 20, 6), w = uneven(out, in, 30, 1);
  auto errors = [&](bool blocks, DType gradient) {
    TestWeight weight(ctx, w);
    ops::Fp8Weight fp8{.gradient = gradient, .blocks = blocks, .matrix = {}};
    Tape tape(ctx);
    Tensor input = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = ops::call_linear(ctx, input, weight.get(), {.fp8 = &fp8}).y;
    }
    tape.backward(ctx, y, dy);
    const Matrix mx = matrix_of(ctx, x), mdy = matrix_of(ctx, dy), mw = matrix_of(ctx, w);
    return std::vector<double>{
        distance(matrix_of(ctx, y.detach()).values, matmul(mx, mw).values),
        distance(matrix_of(ctx, tape.grad(input)).values, matmul(mdy, mw.transposed()).values),
        distance(matrix_of(ctx, weight.accumulator.main_grad).values,
                 matmul(mdy.transposed(), mx.transposed()).values)};
  };
  const auto whole = errors(false, DType::F8E5M2), blocks = errors(true, DType::F8E4M3);
  EXPECT_LT(blocks[0], 1.05 * whole[0]);
  EXPECT_LT(blocks[1], 0.8 * whole[1]);
  EXPECT_LT(blocks[2], 0.8 * whole[2]);
}

// Ranks that hold whole blocks of a weight round it as one rank does.
TEST_F(Fp8Blocks, PartsOfWholeBlocksAreRoundedAlike) {
  Tensor w = varied(ctx, 256, 512, 5);
  ops::Operand whole;
  ops::to_fp8_blocks(ctx, w, DType::F8E4M3, 128, whole);
  for (int dimension : {0, 1})
    for (int part : {0, 1}) {
      const int64_t size = w.size(dimension) / 2;
      Tensor mine = ctx.empty(dimension == 0 ? Shape{size, 512} : Shape{256, size}, DType::F32);
      ctx.kernels->copy(ctx.kernel_context(), {w.slice(dimension, part * size, (part + 1) * size), mine});
      ops::Operand got;
      ops::to_fp8_blocks(ctx, mine, DType::F8E4M3, 128, got);
      EXPECT_EQ(matrix_of(ctx, got.data).values,
                matrix_of(ctx, whole.data.slice(dimension, part * size, (part + 1) * size)).values);
      EXPECT_EQ(matrix_of(ctx, got.transposed).values,
                matrix_of(ctx, whole.transposed.slice(1 - dimension, part * size, (part + 1) * size)).values);
    }
}

}  // namespace
}  // namespace megatron
