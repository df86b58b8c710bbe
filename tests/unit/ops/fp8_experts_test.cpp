// Linears of experts in fp8: each expert is a linear in fp8 by itself, of its own rows.
#include <gtest/gtest.h>

#include <limits>

#include "megatron/ops/grouped_format.h"
#include "megatron/ops/linear.h"
#include "support/gradcheck.h"
#include "support/to_doubles.h"
#include "unit/ops/fp8_accum.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;
using testing::to_doubles;

struct Recipe {
  const char* name;
  bool blocks = false, wide = false, delayed = false;
};
constexpr Recipe kRecipes[] = {{"tensorwise"},
                               {"blockwise", true},
                               {"wide weight gradients", false, true},
                               {"delayed", false, false, true}};

class Fp8Experts : public ::testing::Test {
 protected:
  static constexpr int64_t kExperts = 4, kIn = 160, kOut = 96, kRows = 640;
  const std::vector<int32_t> bounds_{0, 128, 128, 512, 512 + 128};

  void SetUp() override {
    if (!testing::multiplies_fp8(ctx.device, true))
      GTEST_SKIP() << "this GPU multiplies no such matrices of experts: NOT tested";
  }
  RankContext ctx{testing::test_device()};
  DType dtype = ctx.device.is_cuda() ? DType::BF16 : DType::F32;
  Tensor offsets = ctx.from_vector(bounds_, {kExperts + 1});

  // Values of another magnitude for each expert; those of no expert are NaN.
  Tensor rows_of_experts(int64_t rows, int64_t columns, uint64_t seed, double size) {
    Tensor x = random_tensor(ctx, {rows, columns}, seed, dtype, size);
    for (size_t e = 0; e + 1 < bounds_.size(); ++e)
      if (const Tensor own = x.slice(0, bounds_[e], bounds_[e + 1]); own.numel() > 0) {
        const Tensor factor = ctx.full(own.shape(), dtype, std::exp2(static_cast<double>(2 * e) - 3));
        ctx.kernels->binary(ctx.kernel_context(), {Binary::Mul, own, factor, own});
      }
    if (rows > bounds_.back())
      ctx.kernels->fill(ctx.kernel_context(),
                        {x.slice(0, bounds_.back(), rows), std::numeric_limits<double>::quiet_NaN()});
    return x;
  }
  ops::Fp8Weight fp8_of(const Recipe& recipe, int64_t groups, int64_t first = 0) {
    ops::Fp8Weight fp8;
    fp8.blocks = recipe.blocks;
    fp8.wide_wgrad = recipe.wide;
    if (!recipe.delayed) return fp8;
    double scale = 20;
    for (ops::Fp8Delay* delay : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) {
      std::vector<float> scales, amax;
      for (int64_t g = first; g < first + groups; ++g)
        scales.push_back(static_cast<float>(scale * std::exp2(-g))), amax.push_back(0.25f);
      delay->scale = ctx.from_vector(scales, {groups, 1});
      delay->amax = ctx.from_vector(amax, {groups, 1});
      scale *= 7;
    }
    return fp8;
  }

  struct Results {
    Tensor y, dx, dw;
  };
  // Twice, so that gradients add up.
  Results results(const Tensor& x, const Tensor& dy, const Tensor& w, ops::Fp8Weight* fp8, const Tensor& by) {
    TestWeight weight(ctx, w);
    Results r;
    for (int time = 0; time < 2; ++time) {
      Tape tape(ctx);
      Tensor input = tape.watch(x), y;
      {
        TapeScope scope(ctx, &tape);
        y = ops::call_linear(ctx, input, weight.get(), {.fp8 = fp8, .offsets = by}).y;
      }
      tape.backward(ctx, y, dy);
      r = {y.detach(), tape.grad(input), weight.accumulator.main_grad};
    }
    return r;
  }
  std::vector<double> values(const Tensor& t) { return to_doubles(ctx, t); }
  // Relative to the size of the second.
  double distance(const Tensor& a, const Tensor& b) {
    const auto x = values(a), y = values(b);
    double difference = 0, size = 0;
    for (size_t i = 0; i < y.size(); ++i) difference += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    return std::sqrt(difference / size);
  }
};

TEST_F(Fp8Experts, EachIsALinearOfItsOwn) {
  const double bound = ctx.device.is_cuda() ? 4e-3 : 1e-9;  // results there are rounded to bf16
  const Tensor x = rows_of_experts(kRows + 128, kIn, 1, 2), dy = rows_of_experts(kRows + 128, kOut, 2, 0.1);
  const Tensor w = random_tensor(ctx, {kExperts, kOut, kIn}, 3, dtype, 0.3);
  for (const Recipe& recipe : kRecipes) {
    ops::Fp8Weight fp8 = fp8_of(recipe, kExperts);
    const Results all = results(x, dy, w, &fp8, offsets);
    EXPECT_TRUE(fp8.current) << recipe.name;
    for (int64_t e = 0; e < kExperts; ++e) {
      SCOPED_TRACE(fmt::format("{}, expert {}", recipe.name, e));
      const int64_t begin = bounds_[static_cast<size_t>(e)], end = bounds_[static_cast<size_t>(e) + 1];
      if (begin == end) {
        for (double value : values(all.dw.select(0, e))) ASSERT_EQ(value, 0);
        continue;
      }
      const auto own = [&](const Tensor& t) { return t.slice(0, begin, end); };
      ops::Fp8Weight alone = fp8_of(recipe, 1, e);
      const Results one = results(own(x), own(dy), w.select(0, e), &alone, {});
      EXPECT_LE(distance(own(all.y), one.y), bound);
      EXPECT_LE(distance(own(all.dx), one.dx), bound);
      EXPECT_LE(distance(all.dw.select(0, e), one.dw), bound);
      if (!recipe.delayed) continue;
      const auto amax = [&](const ops::Fp8Delay& delay, int64_t row) {
        return ctx.item(delay.amax.slice(0, row, row + 1));
      };
      EXPECT_EQ(amax(fp8.input_delay, e), amax(alone.input_delay, 0));
      EXPECT_EQ(amax(fp8.weight_delay, e), amax(alone.weight_delay, 0));
      EXPECT_EQ(amax(fp8.gradient_delay, e), amax(alone.gradient_delay, 0));
      EXPECT_GT(amax(fp8.weight_delay, e), 0.25);
    }
  }
}

TEST_F(Fp8Experts, AreNearTheExactLinears) {
  const Tensor x = rows_of_experts(kRows, kIn, 4, 2), dy = rows_of_experts(kRows, kOut, 5, 0.1);
  const Tensor w = random_tensor(ctx, {kExperts, kOut, kIn}, 6, dtype, 0.3);
  const Results exact = results(x, dy, w, nullptr, offsets);
  for (const Recipe& recipe : kRecipes) {
    SCOPED_TRACE(recipe.name);
    if (recipe.delayed) continue;  // with scales that are made up
    ops::Fp8Weight fp8 = fp8_of(recipe, kExperts);
    const Results got = results(x, dy, w, &fp8, offsets);
    EXPECT_LT(distance(got.y, exact.y), 0.05);
    EXPECT_LT(distance(got.dx, exact.dx), 0.1);
    EXPECT_LT(distance(got.dw, exact.dw), recipe.wide ? 1e-9 : 0.1);
    EXPECT_GT(distance(got.y, exact.y), 1e-4);
    EXPECT_GT(distance(got.dx, exact.dx), 1e-4);
    if (!recipe.wide) EXPECT_GT(distance(got.dw, exact.dw), 1e-4);
  }
}

TEST_F(Fp8Experts, ShapesThatTheHardwareRefusesStayAsTheyAre) {
  const Shape taken{2, 32, 48};
  ops::Fp8Weight fp8, blocks;
  blocks.blocks = true;
  EXPECT_EQ(ops::grouped_fp8_alignment(nullptr, taken), 1);
  EXPECT_EQ(ops::grouped_fp8_alignment(&fp8, taken), 16);
  EXPECT_EQ(ops::grouped_fp8_alignment(&blocks, taken), 128);
  EXPECT_EQ(ops::grouped_fp8_alignment(&fp8, {2, 40, 48}), 1);
  EXPECT_EQ(ops::grouped_fp8_alignment(&fp8, {2, 32, 40}), 1);
  EXPECT_TRUE(ops::grouped_fp8_takes(32, &fp8, taken));
  EXPECT_FALSE(ops::grouped_fp8_takes(0, &fp8, taken));
  EXPECT_FALSE(ops::grouped_fp8_takes(40, &fp8, taken));
  EXPECT_FALSE(ops::grouped_fp8_takes(32, &blocks, taken));

  const Tensor x = random_tensor(ctx, {24, 48}, 7, dtype), by = ctx.from_vector<int32_t>({0, 16, 24}, {3});
  const Tensor w = random_tensor(ctx, {2, 32, 48}, 8, dtype);
  TestWeight weight(ctx, w);
  const auto run = [&](ops::Fp8Weight* format) {
    return values(ops::call_linear(ctx, x, weight.get(), {.fp8 = format, .offsets = by}).y);
  };
  EXPECT_EQ(run(&fp8), run(nullptr));
  EXPECT_FALSE(fp8.current);
}

TEST_F(Fp8Experts, RowsThatBeginBetweenBlocksAreRefusedOnTheCpu) {
  if (ctx.device.is_cuda()) GTEST_SKIP() << "offsets are not read by the host there";
  const Tensor x = random_tensor(ctx, {32, 48}, 7, dtype), by = ctx.from_vector<int32_t>({0, 8, 32}, {3});
  TestWeight weight(ctx, random_tensor(ctx, {2, 32, 48}, 8, dtype));
  ops::Fp8Weight fp8;
  EXPECT_THROW(ops::call_linear(ctx, x, weight.get(), {.fp8 = &fp8, .offsets = by}), Error);
}

}  // namespace
}  // namespace megatron
