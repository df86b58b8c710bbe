#include "megatron/ops/index.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(Index, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  Tensor ids = ctx.from_vector<int64_t>({3, 0, 3, 9, -1}, {5});  // two of them outside
  Tensor columns = ctx.from_vector<int64_t>({1, 1, 0, 2, 2, 1, 0, 1}, {4, 2});
  using Tensors = std::vector<Tensor>;
  gradcheck(ctx,
            [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
              return Tensors{ops::gather_rows(ctx, x[0], ids), ops::gather_columns(ctx, x[0], columns)};
            },
            {random_tensor(ctx, {4, 3}, 1)});
  gradcheck(ctx,
            [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
              return Tensors{ops::scatter_add_rows(ctx, x[0], ids, 4)};
            },
            {random_tensor(ctx, {5, 3}, 1)});
  gradcheck(ctx,
            [&](RankContext& ctx, const Tensors& x, const std::vector<Weight>&) {
              return Tensors{ops::top_k(ctx, x[0], 3).values};
            },
            {random_tensor(ctx, {5, 7}, 1)});
}

TEST(Index, RowsGatheredAndScattered) {
  RankContext ctx(testing::test_device());
  Tensor x = ctx.from_vector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  Tensor ids = ctx.from_vector<int64_t>({2, 2, 7, 0}, {4});
  Tensor rows = ops::gather_rows(ctx, x, ids);
  EXPECT_EQ(ctx.to_vector<float>(rows), (std::vector<float>{5, 6, 5, 6, 0, 0, 1, 2}));
  EXPECT_EQ(ctx.to_vector<float>(ops::scatter_add_rows(ctx, rows, ids, 3)),
            (std::vector<float>{1, 2, 0, 0, 10, 12}));
}

TEST(Index, TopKKeepsTheOrderOfEquals) {
  RankContext ctx(testing::test_device(), 2);
  Tensor x = ctx.from_vector<float>({1, 5, 5, -2, 5, 0, 7, 1}, {1, 8});
  ops::TopK best = ops::top_k(ctx, x, 4);
  EXPECT_EQ(ctx.to_vector<float>(best.values), (std::vector<float>{7, 5, 5, 5}));
  EXPECT_EQ(ctx.to_vector<int64_t>(best.indices), (std::vector<int64_t>{6, 1, 2, 4}));
  best = ops::top_k(ctx, x, 8);
  EXPECT_EQ(ctx.to_vector<int64_t>(best.indices), (std::vector<int64_t>{6, 1, 2, 4, 0, 7, 5, 3}));
  EXPECT_THROW(ops::top_k(ctx, x, 9), Error);
}

TEST(Index, RunsOnMeta) {
  RankContext ctx(kMeta);
  Tensor x = ctx.empty({6, 4}, DType::F32), ids = ctx.empty({3}, DType::I64);
  EXPECT_EQ(ops::gather_rows(ctx, x, ids).shape(), Shape({3, 4}));
  EXPECT_EQ(ops::scatter_add_rows(ctx, ops::gather_rows(ctx, x, ids), ids, 9).shape(), Shape({9, 4}));
  EXPECT_EQ(ops::top_k(ctx, x, 2).indices.shape(), Shape({6, 2}));
}

}  // namespace
}  // namespace megatron
