#include "megatron/ops/elementwise.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

using BinaryOp = Tensor (*)(RankContext&, const Tensor&, const Tensor&);

Tensor away_from_zero(RankContext& ctx, Shape shape, uint64_t seed) {
  auto values = ctx.to_vector<double>(random_tensor(ctx, shape, seed));
  for (double& v : values) v += v < 0 ? -0.5 : 0.5;
  return ctx.from_vector(values, shape);
}

TEST(Elementwise, GradientsOfArithmeticAndOfRepeatedOperands) {
  RankContext ctx(testing::test_device());
  std::pair<Shape, Shape> shapes[] = {
      {{3, 4}, {3, 4}}, {{3, 4}, {4}}, {{3, 1}, {3, 4}}, {{2, 1, 3}, {4, 1}}, {{1}, {2, 2}}};
  for (BinaryOp op : {&ops::add, &ops::sub, &ops::mul, &ops::div})
    for (auto& [a, b] : shapes)
      gradcheck(
          ctx, [&](RankContext& c, const auto& in, const auto&) { return std::vector{op(c, in[0], in[1])}; },
          {random_tensor(ctx, a, 1), away_from_zero(ctx, b, 2)}, {}, 1e-6);
}

TEST(Elementwise, OneTensorTwice) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [](RankContext& c, const auto& in, const auto&) {
              return std::vector{ops::add(c, ops::mul(c, in[0], in[0]), in[0])};
            },
            {random_tensor(ctx, {5}, 1)});
}

TEST(Elementwise, GradientsOfScaleAxpbyWhereCast) {
  RankContext ctx(testing::test_device());
  const bool bits[] = {true, false, true, true, false, false};
  Tensor condition = ctx.from_host(bits, {2, 3}, DType::Bool);
  gradcheck(ctx,
            [&](RankContext& c, const auto& in, const auto&) {
              Tensor mixed = ops::axpby(c, 0.3, in[0], -2, in[1]);
              return std::vector{ops::where(c, condition, ops::scale(c, mixed, 1.7), in[2]),
                                 ops::cast(c, in[0], DType::F64)};
            },
            {random_tensor(ctx, {2, 3}, 1), random_tensor(ctx, {2, 3}, 2), random_tensor(ctx, {1, 3}, 3)});
}

TEST(Elementwise, CastReturnsItsGradientInTheInputsDtype) {
  RankContext ctx(testing::test_device());
  Tape tape(ctx);
  Tensor x = tape.watch(random_tensor(ctx, {4}, 1, DType::BF16));
  Tensor y;
  {
    TapeScope scope(ctx, &tape);
    y = ops::cast(ctx, x, DType::F32);
  }
  tape.backward(ctx, y, random_tensor(ctx, {4}, 2, DType::F32));
  EXPECT_EQ(tape.grad(x).dtype(), DType::BF16);
}

TEST(Elementwise, MessagesNameTheOpAndTheShapes) {
  RankContext ctx(testing::test_device());
  try {
    ops::add(ctx, random_tensor(ctx, {2, 3}, 1), random_tensor(ctx, {4}, 1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("add: the shapes of fp64[2, 3]"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(ops::mul(ctx, random_tensor(ctx, {2}, 1), random_tensor(ctx, {2}, 1, DType::F32)), Error);
  EXPECT_THROW(
      ops::where(ctx, random_tensor(ctx, {2}, 1), random_tensor(ctx, {2}, 1), random_tensor(ctx, {2}, 1)),
      Error);
}

}  // namespace
}  // namespace megatron
