#include <gtest/gtest.h>

#include "megatron/ops/attention.h"
#include "megatron/ops/dropout.h"
#include "support/gradcheck.h"

// What is added to a stream of random numbers may lie in memory, where it changes between two runs of the
// same recording.
namespace megatron::testing {
namespace {

constexpr uint64_t kStream = 77;

TEST(RngOffset, OfDropout) {
  RankContext ctx(testing::test_device());
  const Tensor x = random_tensor(ctx, {9, 31}, 1, DType::F64);
  for (int64_t step : {0, 1, 1 << 24}) {
    const Tensor offset = ctx.from_vector<int64_t>({step}, {1});
    const auto* value = static_cast<const int64_t*>(offset.raw());
    const auto stream = kStream + static_cast<uint64_t>(step);
    EXPECT_EQ(ctx.to_vector<double>(ops::dropout(ctx, x, 0.4, {5, kStream, value})),
              ctx.to_vector<double>(ops::dropout(ctx, x, 0.4, {5, stream})));
    if (step == 0) continue;
    EXPECT_NE(ctx.to_vector<double>(ops::dropout(ctx, x, 0.4, {5, kStream, value})),
              ctx.to_vector<double>(ops::dropout(ctx, x, 0.4, {5, kStream})));
  }
}

TEST(RngOffset, OfAttention) {
  RankContext ctx(testing::test_device());
  const Tensor q = random_tensor(ctx, {12, 2, 8}, 1, DType::F64),
               k = random_tensor(ctx, {12, 2, 8}, 2, DType::F64),
               v = random_tensor(ctx, {12, 2, 8}, 3, DType::F64);
  const int64_t step = 3 << 24;
  const Tensor offset = ctx.from_vector<int64_t>({step}, {1});
  const auto* value = static_cast<const int64_t*>(offset.raw());
  auto attended = [&](RngKey key) {
    ops::AttentionOptions options;
    options.dropout = 0.3;
    options.dropout_key = key;
    return ctx.to_vector<double>(ops::attention(ctx, q, k, v, options).o);
  };
  EXPECT_EQ(attended({5, kStream, value}), attended({5, kStream + static_cast<uint64_t>(step)}));
  EXPECT_NE(attended({5, kStream, value}), attended({5, kStream}));
}

}  // namespace
}  // namespace megatron::testing
