#include "megatron/ops/qkv.h"

#include <gtest/gtest.h>

#include "megatron/ops/rope.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using Tensors = std::vector<Tensor>;

ops::Rotation rotation(RankContext& ctx, bool interleaved) {
  Tensor positions = ctx.from_vector<int64_t>({0, 3, 1, 7, 2}, {5});
  return ops::rope_tables(ctx, positions, ops::rope_frequencies(4, 100), DType::F64, interleaved);
}

// Heads that share keys or not, with and without rotation, which leaves the last two channels alone.
TEST(SplitQkv, GradientsMatchDifferences) {
  RankContext ctx;
  for (int64_t groups : {1, 2, 4})
    for (int kind = 0; kind < 3; ++kind) {
      SCOPED_TRACE(fmt::format("{} groups, rotation {}", groups, kind));
      ops::Rotation turn = kind ? rotation(ctx, kind == 2) : ops::Rotation{};
      gradcheck(ctx,
                [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
                  auto [q, k, v] = ops::split_qkv(ctx, x[0], 4, groups, 6, turn);
                  return Tensors{q, k, v};
                },
                {random_tensor(ctx, {5, (4 + 2 * groups) * 6}, 1)});
    }
}

// Where only some of q, k and v are used, the others' gradient is zero.
TEST(SplitQkv, UnusedPartsHaveNoGradient) {
  RankContext ctx;
  gradcheck(ctx,
            [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
              return Tensors{ops::split_qkv(ctx, x[0], 4, 2, 6, rotation(ctx, false)).k};
            },
            {random_tensor(ctx, {5, 48}, 1)});
}

// By query group: its heads, its key, its value. Rotation is that of rope on q and on k.
TEST(SplitQkv, IsTheGroupedLayoutWithRopeOnQueriesAndKeys) {
  RankContext ctx;
  Tensor x = random_tensor(ctx, {5, 48}, 1);
  ops::Rotation turn = rotation(ctx, false);
  auto [q, k, v] = ops::split_qkv(ctx, x, 4, 2, 6, turn);
  Tensor groups = x.view({5, 2, 4, 6});
  auto values = [&](const Tensor& t) { return ctx.to_vector<double>(t); };
  auto copied = [&](const Tensor& t, Shape shape) { return ctx.from_vector(values(t), shape); };
  EXPECT_EQ(values(q), values(ops::rope(ctx, copied(groups.slice(2, 0, 2), {5, 4, 6}), turn)));
  EXPECT_EQ(values(k), values(ops::rope(ctx, copied(groups.slice(2, 2, 3), {5, 2, 6}), turn)));
  EXPECT_EQ(values(v), values(groups.slice(2, 3, 4)));
}

}  // namespace
}  // namespace megatron
