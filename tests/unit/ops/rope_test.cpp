#include "megatron/ops/rope.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

ops::Rotation angles(RankContext& ctx, int64_t tokens, int64_t width, bool interleaved) {
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(3 * i + 1);
  return ops::rope_tables(ctx, ctx.from_vector(positions, {tokens}), ops::rope_frequencies(width, 10000),
                          DType::F64, interleaved);
}

TEST(Rope, GradientsOfBothLayoutsWholeAndPartial) {
  RankContext ctx(testing::test_device());
  for (bool interleaved : {false, true})
    for (int64_t width : {8, 4}) {
      auto rotation = angles(ctx, 5, width, interleaved);
      gradcheck(ctx,
                [&](RankContext& c, const auto& in, const auto&) {
                  return std::vector{ops::rope(c, in[0], rotation)};
                },
                {random_tensor(ctx, {5, 3, 8}, 1)});
    }
}

TEST(Rope, TurnsByTheAngleOfThePosition) {
  RankContext ctx(testing::test_device());
  auto rotation = angles(ctx, 2, 4, false);
  Tensor x = ctx.from_vector<double>({1, 2, 3, 4, 1, 2, 3, 4}, {2, 1, 4});
  auto y = ctx.to_vector<double>(ops::rope(ctx, x, rotation));
  for (int t = 0; t < 2; ++t)
    for (int i = 0; i < 2; ++i) {
      double angle = (3 * t + 1) * std::pow(10000.0, -0.5 * i), a = 1 + i, b = 3 + i;
      EXPECT_NEAR(y[4 * t + i], a * std::cos(angle) - b * std::sin(angle), 1e-12);
      EXPECT_NEAR(y[4 * t + i + 2], b * std::cos(angle) + a * std::sin(angle), 1e-12);
    }
}

TEST(Rope, SectionsFollowTheThreeRowsOfPositions) {
  RankContext ctx(testing::test_device());
  Tensor positions = ctx.from_vector<int64_t>({5, 6, 70, 80, 900, 1000}, {3, 2});
  auto f = ops::rope_frequencies(12, 10000);
  auto rotation = ops::rope_tables(ctx, positions, f, DType::F64, false, {2, 3, 1});
  auto cos = ctx.to_vector<double>(rotation.cos);
  std::vector<double> expected_positions = {5, 5, 70, 70, 70, 900, 6, 6, 80, 80, 80, 1000};
  for (size_t i = 0; i < cos.size(); ++i)
    EXPECT_NEAR(cos[i], std::cos(expected_positions[i] * f.inverse[i % 6]), 1e-12);
  EXPECT_THROW(ops::rope_tables(ctx, positions, f, DType::F64, false, {2, 2, 1}), Error);
}

TEST(Rope, RefusesWhatDoesNotFit) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::rope_frequencies(7, 10000), Error);
  EXPECT_THROW(ops::rope_frequencies(8, 10000, {.kind = ops::RopeScalingKind::Yarn}), Error);
  auto rotation = angles(ctx, 5, 8, false);
  EXPECT_THROW(ops::rope(ctx, random_tensor(ctx, {4, 2, 8}, 1), rotation), Error);
  EXPECT_THROW(ops::rope(ctx, random_tensor(ctx, {5, 2, 6}, 1), rotation), Error);
  EXPECT_THROW(ops::rope(ctx, random_tensor(ctx, {5, 2, 8}, 1, DType::F32), rotation), Error);
}

}  // namespace
}  // namespace megatron
