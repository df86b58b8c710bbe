#include "megatron/ops/quantized_weight.h"

#include <gtest/gtest.h>

#include <cmath>

#include "megatron/base/error.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/quantize.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;

TEST(QuantizedWeight, IsReadAsWhatItStandsFor) {
  RankContext ctx;
  const Tensor wide = random_tensor(ctx, {20, 300}, 1, DType::F32),
               x = random_tensor(ctx, {5, 300}, 2, DType::F32);
  const Weight small = ops::quantize_weight(ctx, wide, DType::I8, false);
  EXPECT_EQ(small.value.dtype(), DType::I8);
  EXPECT_EQ(small.scale.shape(), (Shape{20, 3}));
  EXPECT_EQ(ops::scale_rows(small), 1);
  const Tensor read = ops::dequantize(ctx, {small.value, small.scale, 1, 128}, DType::F32);
  const auto w = ctx.to_vector<float>(wide), r = ctx.to_vector<float>(read),
             s = ctx.to_vector<float>(small.scale);
  for (size_t i = 0; i < w.size(); ++i)
    ASSERT_LE(std::abs(w[i] - r[i]), 0.501F * s[i / 300 * 3 + i % 300 / 128]) << i;
  const auto found = ctx.to_vector<float>(ops::linear(ctx, x, small, {})),
             expected = ctx.to_vector<float>(ops::linear(ctx, x, {.value = read}, {}));
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
}

TEST(QuantizedWeight, IsNotForFp8OnTheCpu) {
  RankContext ctx;
  const Weight small =
      ops::quantize_weight(ctx, random_tensor(ctx, {256, 256}, 1, DType::F32), DType::F8E4M3, false);
  EXPECT_EQ(small.scale.shape(), (Shape{2, 2}));
  EXPECT_EQ(small.scale.stride(0), 4);
  EXPECT_EQ(ops::scale_rows(small), 128);
  EXPECT_THROW(ops::linear(ctx, random_tensor(ctx, {5, 256}, 2, DType::F32), small, {}), Error);
}

}  // namespace
}  // namespace megatron
