#include "megatron/ops/linear.h"

#include <gtest/gtest.h>

#include "megatron/ops/quantize.h"
#include "support/gradcheck.h"
#include "unit/ops/fp8_accum.h"

namespace megatron {
namespace {

using testing::random_tensor;
using testing::TestWeight;

struct Results {
  std::vector<float> y, dx, dw, db;
};

// Forward and backward of a linear op, twice, so that weight gradients add up.
Results results(RankContext& ctx, const Tensor& x, const Tensor& dy, TestWeight& w, TestWeight& b,
                const std::function<Tensor(const Tensor&, const Weight&, const Weight&)>& op) {
  Results r;
  for (int time = 0; time < 2; ++time) {
    Tape tape(ctx);
    Tensor input = tape.watch(x), y;
    {
      TapeScope scope(ctx, &tape);
      y = op(input, w.get(), b.get());
    }
    tape.backward(ctx, y, dy);
    r = {ctx.to_vector<float>(y.detach()), ctx.to_vector<float>(tape.grad(input)),
         ctx.to_vector<float>(w.accumulator.main_grad), ctx.to_vector<float>(b.accumulator.main_grad)};
  }
  return r;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), size += static_cast<double>(b[i]) * b[i];
  return std::sqrt(difference / size);
}

class Fp8Linear : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::multiplies_fp8(ctx.device, false))
      GTEST_SKIP() << "this GPU multiplies no such matrices: NOT tested";
  }
  RankContext ctx{testing::test_device()};
  Tensor x = random_tensor(ctx, {32, 48}, 1, DType::F32, 2),
         dy = random_tensor(ctx, {32, 64}, 2, DType::F32, 0.1);
  Tensor w = random_tensor(ctx, {64, 48}, 3, DType::F32, 0.3), b = random_tensor(ctx, {64}, 4, DType::F32);

  Tensor rounded(const Tensor& t, DType dtype) {
    return ops::dequantize(ctx, ops::quantize(ctx, t, dtype), DType::F32);
  }
};

// The three GEMMs are those of the quantised matrices, each rounded once.
TEST_F(Fp8Linear, IsALinearOfRoundedMatrices) {
  for (DType gradient : {DType::F8E5M2, DType::F8E4M3}) {
    TestWeight weight(ctx, w), bias(ctx, b), rounded_weight(ctx, rounded(w, DType::F8E4M3)),
        plain_bias(ctx, b);
    ops::Fp8Weight fp8{.gradient = gradient, .matrix = {}};
    Results got = results(ctx, x, dy, weight, bias, [&](const Tensor& in, const Weight& v, const Weight& c) {
      return ops::call_linear(ctx, in, v, {.bias = c, .fp8 = &fp8}).y;
    });
    Results wanted = results(
        ctx, rounded(x, DType::F8E4M3), rounded(dy, gradient), rounded_weight, plain_bias,
        [&](const Tensor& in, const Weight& v, const Weight& c) { return ops::linear(ctx, in, v, c); });
    EXPECT_LT(distance(got.y, wanted.y), testing::sum_error(ctx.device));
    EXPECT_LT(distance(got.dx, wanted.dx), testing::sum_error(ctx.device));
    EXPECT_LT(distance(got.dw, wanted.dw), testing::sum_error(ctx.device));
    EXPECT_LT(distance(got.db, wanted.db), 0.1);  // not rounded
    TestWeight exact_weight(ctx, w), exact_bias(ctx, b);
    Results exact = results(
        ctx, x, dy, exact_weight, exact_bias,
        [&](const Tensor& in, const Weight& v, const Weight& c) { return ops::linear(ctx, in, v, c); });
    EXPECT_EQ(got.db, exact.db);
    EXPECT_LT(distance(got.y, exact.y), 0.05);
    EXPECT_LT(distance(got.dx, exact.dx), 0.1);
    EXPECT_LT(distance(got.dw, exact.dw), 0.1);
  }
}

// The weight's gradient is that of matrices which nobody rounded; all else is in fp8.
TEST_F(Fp8Linear, WideWeightGradients) {
  auto run = [&](const std::function<Tensor(const Tensor&, const Weight&, const Weight&)>& op) {
    TestWeight weight(ctx, w), bias(ctx, b);
    return results(ctx, x, dy, weight, bias, op);
  };
  ops::Fp8Weight wide{.wide_wgrad = true, .matrix = {}}, narrow;
  auto in_fp8 = [&](ops::Fp8Weight& fp8) {
    return run([&](const Tensor& in, const Weight& v, const Weight& c) {
      return ops::call_linear(ctx, in, v, {.bias = c, .fp8 = &fp8}).y;
    });
  };
  const Results got = in_fp8(wide), rounded = in_fp8(narrow);
  const Results exact =
      run([&](const Tensor& in, const Weight& v, const Weight& c) { return ops::linear(ctx, in, v, c); });
  EXPECT_EQ(got.dw, exact.dw);
  EXPECT_NE(rounded.dw, exact.dw);
  EXPECT_EQ(got.y, rounded.y);
  EXPECT_EQ(got.dx, rounded.dx);
  EXPECT_EQ(got.db, rounded.db);
}

TEST_F(Fp8Linear, TheWeightIsRoundedAgainWhenToldSo) {
  TestWeight weight(ctx, w);
  ops::Fp8Weight fp8;
  auto run = [&] { return ctx.to_vector<float>(ops::call_linear(ctx, x, weight.get(), {.fp8 = &fp8}).y); };
  auto before = run();
  ctx.kernels->fill(ctx.kernel_context(), {weight.value, 0});
  EXPECT_EQ(run(), before);
  fp8.current = false;
  EXPECT_EQ(run(), std::vector<float>(before.size(), 0.f));
}

// Delayed scaling: values are scaled by what is given, too large ones saturate, and the magnitudes are noted.
TEST_F(Fp8Linear, ScalesFromEarlierSteps) {
  auto one = [&](float value) { return ctx.from_vector(std::vector<float>{value}, {1, 1}); };
  ops::Fp8Delay delay{one(64), one(0.5)};
  ops::Operand matrix;
  Tensor values = ctx.from_vector(std::vector<float>{0.25f, -1, 3, 100}, {2, 2});
  ops::to_fp8(ctx, values, DType::F8E4M3, matrix, delay);
  EXPECT_EQ(ctx.item(matrix.inverse_scale), 1.0 / 64);
  Tensor wide = ctx.empty({2, 2}, DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {matrix.data, wide});
  EXPECT_EQ(ctx.to_vector<float>(wide), (std::vector<float>{16, -64, 192, 448}));
  EXPECT_EQ(ctx.item(delay.amax), 100);
  ops::to_fp8(ctx, ctx.from_vector(std::vector<float>{1, 2}, {1, 2}), DType::F8E4M3, matrix = {}, delay);
  EXPECT_EQ(ctx.item(delay.amax), 100);

  TestWeight weight(ctx, w), bias(ctx, b);
  ops::Fp8Weight fp8;
  for (ops::Fp8Delay* d : {&fp8.input_delay, &fp8.weight_delay, &fp8.gradient_delay}) d->amax = one(0);
  ops::call_linear(ctx, x, weight.get(), {.bias = bias.get(), .fp8 = &fp8})
      .y;  // not recorded: only the weight is noted
  EXPECT_EQ(ctx.item(fp8.input_delay.amax), 0);
  results(ctx, x, dy, weight, bias, [&](const Tensor& in, const Weight& v, const Weight& c) {
    return ops::call_linear(ctx, in, v, {.bias = c, .fp8 = &fp8}).y;
  });
  auto largest = [&](const Tensor& t) {
    float amax = 0;
    for (float v : ctx.to_vector<float>(t)) amax = std::max(amax, std::fabs(v));
    return amax;
  };
  EXPECT_EQ(ctx.item(fp8.input_delay.amax), largest(x));
  EXPECT_EQ(ctx.item(fp8.weight_delay.amax), largest(w));
  EXPECT_EQ(ctx.item(fp8.gradient_delay.amax), largest(dy));
}

TEST_F(Fp8Linear, ShapesThatTheHardwareRefusesStayAsTheyAre) {
  TestWeight weight(ctx, w);
  ops::Fp8Weight fp8;
  Tensor few = x.slice(0, 0, 7);
  EXPECT_EQ(ctx.to_vector<float>(ops::call_linear(ctx, few, weight.get(), {.fp8 = &fp8}).y),
            ctx.to_vector<float>(ops::linear(ctx, few, weight.get())));
  EXPECT_FALSE(fp8.current);
  EXPECT_THROW(
      ops::call_linear(ctx, random_tensor(ctx, {32, 64}, 9, DType::F32), weight.get(), {.fp8 = &fp8}).y,
      Error);
}

}  // namespace
}  // namespace megatron
