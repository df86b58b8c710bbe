#include "megatron/ops/qkv.h"

#include <gtest/gtest.h>

#include "megatron/ops/attention.h"
#include "megatron/ops/elementwise.h"
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
  RankContext ctx(testing::test_device());
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
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
              return Tensors{ops::split_qkv(ctx, x[0], 4, 2, 6, rotation(ctx, false)).k};
            },
            {random_tensor(ctx, {5, 48}, 1)});
}

// By query group: its heads, its key, its value. Rotation is that of rope on q and on k.
TEST(SplitQkv, IsTheGroupedLayoutWithRopeOnQueriesAndKeys) {
  RankContext ctx(testing::test_device());
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

// Heads that lie evenly, with and without rotation, of two sequences. The projection is held by the test, or
// given up and turned in place.
TEST(FusedAttention, IsAttentionOfTheSplitProjection) {
  RankContext ctx(testing::test_device());
  for (int64_t groups : {1, 4})
    for (int kind = 0; kind < 6; ++kind) {
      SCOPED_TRACE(fmt::format("{} groups, case {}", groups, kind));
      const ops::QkvShape shape{4, groups, 6};
      ops::Rotation turn = kind / 2 ? rotation(ctx, kind / 2 == 2) : ops::Rotation{};
      ops::AttentionOptions options;
      options.cu_queries = ctx.from_vector<int32_t>({0, 2, 5}, {3});
      options.max_queries = 3;
      Tensor x = random_tensor(ctx, {5, shape.columns()}, 1), grad = random_tensor(ctx, {5, 4, 6}, 2);
      auto run = [&](auto&& attend) {
        Tape tape(ctx);
        Tensor leaf = tape.watch(x), o;
        {
          TapeScope scope(ctx, &tape);
          o = attend(leaf);
        }
        tape.backward(ctx, o, grad);
        return std::pair{ctx.to_vector<double>(o.detach()), ctx.to_vector<double>(tape.grad(leaf))};
      };
      const std::vector<double> before = ctx.to_vector<double>(x);
      auto apart = run([&](const Tensor& leaf) {
        auto [q, k, v] = ops::split_qkv(ctx, ops::scale(ctx, leaf, 2), 4, groups, 6, turn);
        return ops::attention(ctx, q, k, v, options).o;
      });
      auto fused = run([&](const Tensor& leaf) {
        Tensor qkv = ops::scale(ctx, leaf, 2), held;
        if (kind % 2) held = qkv;
        return ops::fused_attention(ctx, std::move(qkv), shape, turn, options).o;
      });
      EXPECT_EQ(fused.first, apart.first);
      EXPECT_EQ(fused.second, apart.second);
      EXPECT_EQ(ctx.to_vector<double>(x), before);
    }
}

TEST(FusedAttention, TurnsInPlaceWhatNobodyElseHolds) {
  RankContext ctx(testing::test_device());
  const ops::QkvShape shape{2, 2, 6};
  ops::Rotation turn = rotation(ctx, false);
  Tensor held = random_tensor(ctx, {5, shape.columns()}, 1),
         mine = ctx.from_vector(ctx.to_vector<double>(held), {5, shape.columns()});
  const void* memory = mine.raw();
  ops::turn_projection(ctx, mine, shape, turn);
  EXPECT_EQ(mine.raw(), memory);
  Tensor other = held;
  ops::turn_projection(ctx, other, shape, turn);
  EXPECT_NE(other.raw(), held.raw());
  EXPECT_EQ(ctx.to_vector<double>(other), ctx.to_vector<double>(mine));
  EXPECT_NE(ctx.to_vector<double>(other), ctx.to_vector<double>(held));
}

TEST(FusedAttention, RefusesHeadsThatDoNotLieEvenly) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::fused_attention(ctx, random_tensor(ctx, {5, 48}, 1), {4, 2, 6}, {}), Error);
}

}  // namespace
}  // namespace megatron
