#include "megatron/ops/dropout.h"

#include <gtest/gtest.h>

#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::gradcheck;
using testing::random_tensor;

TEST(Dropout, GradientsWithAndWithoutResidual) {
  RankContext ctx(testing::test_device());
  RngKey key{7, 3};
  gradcheck(ctx,
            [&](RankContext& c, const auto& in, const auto&) {
              return std::vector{ops::dropout(c, in[0], 0.3, key),
                                 ops::dropout(c, in[0], 0.5, key, {}, in[1]),
                                 ops::dropout(c, in[0], 0, key, {}, in[1])};
            },
            {random_tensor(ctx, {5, 7}, 1), random_tensor(ctx, {5, 7}, 2)});
}

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  RankContext ctx(testing::test_device());
  auto y = ctx.to_vector<float>(ops::dropout(ctx, ctx.full({400, 250}, DType::F32, 1), 0.2, {1, 2}));
  double sum = 0;
  for (float v : y) {
    ASSERT_TRUE(v == 0 || std::abs(v - 1.25f) < 1e-6f);
    sum += v;
  }
  EXPECT_NEAR(sum / static_cast<double>(y.size()), 1, 0.005);
}

TEST(Dropout, APieceOfTheMatrixIsDroppedLikeTheWhole) {
  RankContext ctx(testing::test_device());
  Tensor x = ctx.full({9, 700}, DType::F64, 1);
  RngKey key{11, 5};
  Tensor whole = ops::dropout(ctx, x, 0.4, key);
  Tensor piece = ops::dropout(ctx, ctx.full({4, 301}, DType::F64, 1), 0.4, key,
                              {.row_begin = 3, .column_begin = 333, .global_columns = 700});
  EXPECT_EQ(ctx.to_vector<double>(whole.slice(0, 3, 7).slice(1, 333, 634)), ctx.to_vector<double>(piece));
}

TEST(Dropout, RefusesWhatIsNoProbability) {
  RankContext ctx(testing::test_device());
  EXPECT_THROW(ops::dropout(ctx, random_tensor(ctx, {2}, 1), 1.5, {}), Error);
}

}  // namespace
}  // namespace megatron
