#include "megatron/ops/moe.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using Tensors = std::vector<Tensor>;

// Five tokens with two choices of four experts; one choice is dropped, and no one wants expert 3.
Tensor choices(RankContext& ctx) { return ctx.from_vector<int64_t>({2, 0, 0, 1, -1, 2, 0, 2, 1, 0}, {5, 2}); }

TEST(Moe, SortKeepsTokensInOrderWithinAnExpert) {
  RankContext ctx(testing::test_device());
  auto order = ops::expert_sort(ctx, choices(ctx), 4);
  EXPECT_EQ(ctx.to_vector<int32_t>(order.offsets), (std::vector<int32_t>{0, 4, 6, 9, 9}));
  EXPECT_EQ(ctx.to_vector<int64_t>(order.copy_of_row), (std::vector<int64_t>{1, 2, 6, 9, 3, 8, 0, 5, 7, -1}));
  EXPECT_EQ(ctx.to_vector<int64_t>(order.row_of_copy), (std::vector<int64_t>{6, 0, 1, 4, -1, 7, 2, 8, 5, 3}));
}

TEST(Moe, SortPadsEveryExpert) {
  RankContext ctx(testing::test_device());
  auto order = ops::expert_sort(ctx, choices(ctx), 4, 4);
  EXPECT_EQ(ctx.to_vector<int32_t>(order.offsets), (std::vector<int32_t>{0, 4, 8, 12, 12}));
  auto copies = ctx.to_vector<int64_t>(order.copy_of_row);
  copies.resize(12);
  EXPECT_EQ(copies, (std::vector<int64_t>{1, 2, 6, 9, 3, 8, -1, -1, 0, 5, 7, -1}));
}

TEST(Moe, SortRefusesAnUnknownExpert) {
  RankContext ctx;  // a GPU would have to be waited for
  EXPECT_THROW(ops::expert_sort(ctx, choices(ctx), 2), Error);
}

TEST(Moe, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  for (int64_t alignment : {1, 4}) {
    auto order = ops::expert_sort(ctx, choices(ctx), 4, alignment);
    int64_t rows = order.copy_of_row.size(0);
    gradcheck(ctx,
              [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
                return Tensors{ops::permute(ctx, x[0], order)};
              },
              {random_tensor(ctx, {5, 3}, 1)});
    gradcheck(ctx,
              [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
                return Tensors{ops::unpermute(ctx, x[0], order, x[1]), ops::unpermute(ctx, x[0], order)};
              },
              {random_tensor(ctx, {rows, 3}, 1), random_tensor(ctx, {5, 2}, 2)});
  }
}

// bf16 rows with fp32 probabilities, on two threads.
TEST(Moe, ThereAndBackIsTheWeightedSum) {
  RankContext ctx(testing::test_device(), 2);
  int64_t tokens = 300, k = 3, hidden = 200;
  std::vector<int64_t> experts(static_cast<size_t>(tokens * k));
  for (size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<int64_t>(i * i % 8);
  auto order = ops::expert_sort(ctx, ctx.from_vector(experts, {tokens, k}), 8, 16);
  Tensor x = random_tensor(ctx, {tokens, hidden}, 1, DType::BF16);
  Tensor weights = random_tensor(ctx, {tokens, k}, 2, DType::F32);
  Tensor y = ops::unpermute(ctx, ops::permute(ctx, x, order), order, weights);
  auto in = ctx.to_vector<bf16>(x), out = ctx.to_vector<bf16>(y);
  auto w = ctx.to_vector<float>(weights);
  for (int64_t t = 0; t < tokens; ++t) {
    auto at = static_cast<size_t>(t * k);
    float sum = w[at] + w[at + 1] + w[at + 2];
    for (int64_t c = 0; c < hidden; ++c) {
      auto i = static_cast<size_t>(t * hidden + c);
      ASSERT_NEAR(out[i], sum * in[i], 0.01);
    }
  }
}

TEST(Moe, RunsOnMeta) {
  RankContext ctx(kMeta);
  auto order = ops::expert_sort(ctx, ctx.empty({6, 2}, DType::I64), 4, 8);
  Tensor x = ops::permute(ctx, ctx.empty({6, 5}, DType::BF16), order);
  EXPECT_EQ(x.shape(), Shape({40, 5}));
  EXPECT_EQ(ops::unpermute(ctx, x, order).shape(), Shape({6, 5}));
}

}  // namespace
}  // namespace megatron
