#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/ops/attention.h"
#include "support/gradcheck.h"
#include "support/test_device.h"

// The largest score of each head, which attention tells beside its results.
namespace megatron {
namespace {

using testing::random_tensor;

class AttentionScores : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 70, kHeads = 4, kKeyHeads = 2, kDim = 8;

  RankContext ctx{testing::test_device()};
  Tensor q = random_tensor(ctx, {kTokens, kHeads, kDim}, 1),
         k = random_tensor(ctx, {kTokens, kKeyHeads, kDim}, 2),
         v = random_tensor(ctx, {kTokens, kKeyHeads, kDim}, 3);

  // By every pair of tokens of one sequence; `starts` are those of the sequences.
  std::vector<double> expected(const ops::AttentionOptions& options, const std::vector<int64_t>& starts) {
    const auto queries = ctx.to_vector<double>(q), keys = ctx.to_vector<double>(k);
    std::vector<double> largest(kHeads, -1e300);
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t j = 0; j < kTokens; ++j) {
        const auto sequence = [&](int64_t token) { return std::ranges::upper_bound(starts, token); };
        if (sequence(i) != sequence(j) || (options.causal && j > i)) continue;
        if (options.window_left >= 0 && i - j > options.window_left) continue;
        for (int64_t head = 0; head < kHeads; ++head) {
          double score = 0;
          for (int64_t c = 0; c < kDim; ++c)
            score += queries[static_cast<size_t>((i * kHeads + head) * kDim + c)] *
                     keys[static_cast<size_t>((j * kKeyHeads + head / (kHeads / kKeyHeads)) * kDim + c)];
          auto& held = largest[static_cast<size_t>(head)];
          held = std::max(held, score * options.scale);
        }
      }
    return largest;
  }

  void check(ops::AttentionOptions options, const std::vector<int64_t>& starts) {
    options.scale = 0.3;
    options.max_scores = ctx.full({kHeads}, DType::F64, -1e30);
    ops::attention(ctx, q, k, v, options);
    const auto got = ctx.to_vector<double>(options.max_scores), wanted = expected(options, starts);
    for (size_t head = 0; head < wanted.size(); ++head) EXPECT_NEAR(got[head], wanted[head], 1e-12) << head;
  }
};

TEST_F(AttentionScores, OfWhatQueriesSee) {
  check({.batch = 2}, {0, kTokens / 2});
  check({.batch = 1, .causal = false}, {0});
  check({.batch = 1, .window_left = 3}, {0});
  check({.cu_queries = ctx.from_vector(std::vector<int32_t>{0, 3, 40, kTokens}, {4}), .max_queries = 37},
        {0, 3, 40});
}

// Of several passes the largest counts, and of a list only the heads that attend.
TEST_F(AttentionScores, StayTheLargest) {
  ops::AttentionOptions options{.max_scores = ctx.full({kHeads + 3}, DType::F64, 1e6), .max_scores_begin = 2};
  ops::attention(ctx, q, k, v, options);
  EXPECT_EQ(ctx.to_vector<double>(options.max_scores), std::vector<double>(kHeads + 3, 1e6));
  ctx.kernels->fill(ctx.kernel_context(), {options.max_scores, -1e6});
  ops::attention(ctx, q, k, v, options);
  const auto got = ctx.to_vector<double>(options.max_scores);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i] > -1e6, i >= 2 && i < 2 + kHeads) << i;
}

}  // namespace
}  // namespace megatron
