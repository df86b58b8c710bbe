#include "megatron/ops/embedding.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;
using testing::TestWeight;

TEST(Embedding, GradientsMatchDifferences) {
  RankContext ctx(testing::test_device());
  Tensor ids = ctx.from_vector<int64_t>({3, 0, 3, 2, 3}, {5});
  gradcheck(ctx,
            [&](RankContext& ctx, const std::vector<Tensor>&, const std::vector<Weight>& w) {
              return std::vector<Tensor>{ops::embedding(ctx, w[0], ids)};
            },
            {}, {random_tensor(ctx, {4, 3}, 1)});
}

TEST(Embedding, ShardsOfTheVocabularySumToTheWhole) {
  RankContext ctx(testing::test_device(), 2);
  Tensor table = random_tensor(ctx, {10, 40}, 1);
  Tensor ids = ctx.from_vector<int64_t>({9, 4, 5, 0, 4}, {5});
  auto whole = ctx.to_vector<double>(ops::embedding(ctx, {table}, ids));
  auto low = ctx.to_vector<double>(ops::embedding(ctx, {table.slice(0, 0, 5)}, ids, 0, 10));
  auto high = ctx.to_vector<double>(ops::embedding(ctx, {table.slice(0, 5, 10)}, ids, 5, 10));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], low[i] + high[i]);
}

// The sums of many equal ids are the same for any number of threads, and add to what is there.
TEST(Embedding, GradientIsDeterministicAndAccumulates) {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2}) {
    RankContext ctx(kCpu, threads);
    TestWeight table(ctx, random_tensor(ctx, {7, 100}, 1, DType::BF16));
    std::vector<int64_t> ids(3000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 7);
    for (int step = 0; step < 2; ++step) {
      Tape tape(ctx);
      Tensor y;
      {
        TapeScope scope(ctx, &tape);
        y = ops::embedding(ctx, table.get(), ctx.from_vector(ids, {3000}));
      }
      tape.backward(ctx, y, random_tensor(ctx, y.shape(), 2, DType::BF16));
      results.push_back(ctx.to_vector<float>(table.accumulator.main_grad));
    }
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_NEAR(results[1][i], 2 * results[0][i], 1e-3);
}

TEST(Embedding, AbsentRowsAreZeros) {
  RankContext ctx(testing::test_device());
  gradcheck(ctx,
            [&](RankContext& ctx, const std::vector<Tensor>&, const std::vector<Weight>& w) {
              Tensor ids = ctx.from_vector<int64_t>({3, -1, 0, -1}, {4});
              return std::vector<Tensor>{ops::embedding_or_zeros(ctx, w[0], ids)};
            },
            {}, {random_tensor(ctx, {4, 3}, 1)});
  Tensor table = random_tensor(ctx, {4, 3}, 1), ids = ctx.from_vector<int64_t>({-1}, {1});
  EXPECT_EQ(ctx.to_vector<double>(ops::embedding_or_zeros(ctx, {table}, ids)), std::vector<double>(3, 0.0));
  if (!ctx.device.is_cpu()) return;  // no other device looks at ids before it uses them
  EXPECT_THROW(ops::embedding(ctx, {table}, ids), Error);
  EXPECT_THROW(ops::embedding_or_zeros(ctx, {table}, ctx.from_vector<int64_t>({4}, {1})), Error);
}

TEST(Embedding, RefusesOtherIds) {
  RankContext ctx(testing::test_device());
  Tensor table = random_tensor(ctx, {4, 3}, 1);
  EXPECT_THROW(ops::embedding(ctx, {table}, ctx.from_vector<int32_t>({1}, {1})), Error);
  EXPECT_THROW(ops::embedding(ctx, {table}, ctx.from_vector<int64_t>({1}, {1, 1})), Error);
}

}  // namespace
}  // namespace megatron
