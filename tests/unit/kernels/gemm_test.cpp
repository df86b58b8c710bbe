#include <gtest/gtest.h>

#include "support/gradcheck.h"
#include "support/to_doubles.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::to_doubles;

struct Case {
  int64_t m, n, k;
  bool a_transposed = false, b_transposed = false, bias = false;
  double alpha = 1, beta = 0;
  DType in = DType::F32, out = DType::F32;
};

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return 1e-13;
    case DType::F32:
      return 1e-5;
    case DType::F16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

void check(RankContext& ctx, const Case& c) {
  SCOPED_TRACE(fmt::format("{}x{}x{} ta {} tb {} bias {} alpha {} beta {} {}->{}", c.m, c.n, c.k,
                           c.a_transposed, c.b_transposed, c.bias, c.alpha, c.beta, c.in, c.out));
  Tensor a = c.a_transposed ? random_tensor(ctx, {c.k, c.m}, 1, c.in).transpose(0, 1)
                            : random_tensor(ctx, {c.m, c.k}, 1, c.in);
  Tensor b = c.b_transposed ? random_tensor(ctx, {c.n, c.k}, 2, c.in).transpose(0, 1)
                            : random_tensor(ctx, {c.k, c.n}, 2, c.in);
  Tensor out = c.beta == 0 ? ctx.full({c.m, c.n}, c.out, NAN) : random_tensor(ctx, {c.m, c.n}, 3, c.out);
  Tensor bias = c.bias ? random_tensor(ctx, {c.n}, 4, c.in) : Tensor{};
  auto x = to_doubles(ctx, a), y = to_doubles(ctx, b), before = to_doubles(ctx, out);
  auto shift = c.bias ? to_doubles(ctx, bias) : std::vector<double>(static_cast<size_t>(c.n));
  ctx.kernels->gemm(ctx.kernel_context(), {a, b, out, c.alpha, c.beta, bias});
  auto found = to_doubles(ctx, out);
  double scale = std::sqrt(static_cast<double>(std::max<int64_t>(c.k, 1)));
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < c.k; ++p) sum += x[i * c.k + p] * y[p * c.n + j];
      double expected = c.alpha * sum + shift[j] + (c.beta == 0 ? 0 : c.beta * before[i * c.n + j]);
      ASSERT_NEAR(found[i * c.n + j], expected, tolerance_of(c.out) * scale) << i << ", " << j;
    }
}

TEST(Gemm, ShapesTransposesAndScalesInEveryDtype) {
  RankContext ctx(kCpu, 2);
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16})
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                           {1, 7, 5},
                           {13, 1, 33},
                           {12, 32, 16},
                           {37, 45, 61},
                           {65, 130, 300},
                           {200, 270, 20}})
      for (bool ta : {false, true})
        for (bool tb : {false, true}) {
          check(ctx, {m, n, k, ta, tb, false, 1, 0, dtype, dtype});
          check(ctx, {m, n, k, ta, tb, true, 0.5, 1, dtype, dtype});
        }
}

TEST(Gemm, NarrowOperandsIntoAWideResult) {
  RankContext ctx;
  for (DType dtype : {DType::BF16, DType::F16})
    for (double beta : {0.0, 1.0}) {
      check(ctx, {37, 45, 61, true, false, false, 1, beta, dtype, DType::F32});
      check(ctx, {128, 64, 300, true, false, false, 1, beta, dtype, DType::F32});
    }
}

TEST(Gemm, EmptyKGivesBetaTimesC) {
  RankContext ctx;
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    check(ctx, {4, 5, 0, false, false, false, 1, 0, dtype, dtype});
    check(ctx, {4, 5, 0, false, false, true, 1, 0.5, dtype, dtype});
    check(ctx, {0, 5, 3, false, false, false, 1, 0, dtype, dtype});
  }
}

TEST(Gemm, BatchesAndViewsOfLargerMatrices) {
  RankContext ctx(kCpu, 2);
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    Tensor a = random_tensor(ctx, {3, 10, 20}, 1, dtype).slice(2, 4, 15);
    Tensor b = random_tensor(ctx, {3, 16, 11}, 2, dtype).transpose(1, 2).slice(2, 3, 12);
    Tensor c = ctx.zeros({3, 10, 30}, dtype).slice(2, 5, 14);
    ctx.kernels->gemm(ctx.kernel_context(), {a, b, c});
    auto x = to_doubles(ctx, a), y = to_doubles(ctx, b), found = to_doubles(ctx, c);
    for (int64_t e = 0; e < 3; ++e)
      for (int64_t i = 0; i < 10; ++i)
        for (int64_t j = 0; j < 9; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < 11; ++p) sum += x[(e * 10 + i) * 11 + p] * y[(e * 11 + p) * 9 + j];
          EXPECT_NEAR(found[(e * 10 + i) * 9 + j], sum, 4 * tolerance_of(dtype));
        }
  }
}

TEST(GroupedGemm, EveryExpertItsRows) {
  RankContext ctx(kCpu, 2);
  std::vector<int32_t> offsets = {0, 5, 5, 17};
  Tensor rows = ctx.from_vector(offsets, {4});
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    Tensor a = random_tensor(ctx, {20, 6}, 1, dtype),
           b = random_tensor(ctx, {3, 8, 6}, 2, dtype).transpose(1, 2);
    Tensor c = ctx.full({20, 8}, dtype, 9);
    ctx.kernels->grouped_gemm(ctx.kernel_context(), {a, b, c, rows});
    auto x = to_doubles(ctx, a), y = to_doubles(ctx, b), z = to_doubles(ctx, c);
    for (int64_t r = 0; r < 20; ++r)
      for (int64_t j = 0; j < 8; ++j) {
        double sum = 0;
        int64_t e = r < 5 ? 0 : 2;
        for (int64_t p = 0; p < 6; ++p) sum += x[r * 6 + p] * y[(e * 6 + p) * 8 + j];
        EXPECT_NEAR(z[r * 8 + j], r < 17 ? sum : 9, 4 * tolerance_of(dtype));
      }
    DType sum_dtype = accumulation_dtype(dtype);
    Tensor dw = ctx.full({3, 6, 8}, sum_dtype, 2);
    Tensor dy = random_tensor(ctx, {20, 8}, 3, dtype);
    ctx.kernels->grouped_gemm_weight(ctx.kernel_context(), {a, dy, dw, rows, 0.5});
    auto d = to_doubles(ctx, dy), w = to_doubles(ctx, dw);
    for (int64_t e = 0; e < 3; ++e)
      for (int64_t p = 0; p < 6; ++p)
        for (int64_t j = 0; j < 8; ++j) {
          double sum = 1;
          for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) sum += x[r * 6 + p] * d[r * 8 + j];
          EXPECT_NEAR(w[(e * 6 + p) * 8 + j], sum, 1e-5);
        }
  }
}

TEST(Gemm, ThreadsGiveTheSameResult) {
  for (DType dtype : {DType::F64, DType::F32}) {
    RankContext one(kCpu, 1), three(kCpu, 3);
    Tensor a = random_tensor(one, {300, 100}, 1, dtype), b = random_tensor(one, {100, 520}, 2, dtype);
    Tensor c = one.empty({300, 520}, dtype), d = three.empty({300, 520}, dtype);
    one.kernels->gemm(one.kernel_context(), {a, b, c});
    three.kernels->gemm(three.kernel_context(), {a, b, d});
    EXPECT_EQ(to_doubles(one, c), to_doubles(three, d));
  }
}

// Rows of a batch-invariant GEMM have the same bits however many there are, and are near those of any other.
TEST(Gemm, BatchInvariantRowsAreAlikeInAnyNumber) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F64})
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{70, 33}, {5, 256}, {130, 300}, {1, 7}, {200, 2048}})
      for (bool b_transposed : {true, false}) {
        SCOPED_TRACE(fmt::format("{} n {} k {} b transposed {}", name_of(dtype), n, k, b_transposed));
        RankContext ctx;
        const Tensor a = random_tensor(ctx, {90, k}, 1, dtype), bias = random_tensor(ctx, {n}, 3, dtype);
        const Tensor b = b_transposed ? random_tensor(ctx, {n, k}, 2, dtype).transpose(0, 1)
                                      : random_tensor(ctx, {k, n}, 2, dtype);
        const auto rows = [&, n = n](int64_t begin, int64_t end) {
          Tensor c = ctx.empty({end - begin, n}, dtype);
          ctx.kernels->gemm(ctx.kernel_context(),
                            {.a = a.slice(0, begin, end), .b = b, .c = c, .bias = bias});
          return to_doubles(ctx, c);
        };
        const std::vector<double> other = rows(0, 90);
        ctx.batch_invariant = true;
        const std::vector<double> all = rows(0, 90);
        for (size_t i = 0; i < all.size(); ++i)
          ASSERT_NEAR(all[i], other[i],
                      dtype == DType::BF16 ? 0.02 * std::max(1.0, std::abs(other[i])) : 1e-4);
        for (int64_t count : {1, 2, 3, 5, 12, 64})
          for (int64_t begin = 0; begin + count <= 90; begin += 29) {
            const std::vector<double> some = rows(begin, begin + count);
            ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + begin * n))
                << count << " rows from " << begin;
          }
      }
}

}  // namespace
}  // namespace megatron
