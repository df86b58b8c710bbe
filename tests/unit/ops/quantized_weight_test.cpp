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
  for (const DType dtype : {DType::I8, kInt4}) {
    const int64_t group = scale_columns(dtype), groups = (300 + group - 1) / group;
    const Weight small = ops::quantize_weight(ctx, wide, dtype, false);
    EXPECT_EQ(small.value.dtype(), dtype);
    EXPECT_EQ(small.value.shape(), (Shape{20, dtype == kInt4 ? 150 : 300}));
    EXPECT_EQ(small.scale.shape(), (Shape{20, groups}));
    EXPECT_EQ(ops::scale_rows(small), 1);
    EXPECT_EQ(ops::columns_of(small), 300);
    const Tensor read = ops::dequantize(ctx, {small.value, small.scale, 1, group}, DType::F32);
    const auto w = ctx.to_vector<float>(wide), r = ctx.to_vector<float>(read);
    Tensor scale = ctx.empty(small.scale.shape(), DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {small.scale, scale});
    const auto s = ctx.to_vector<float>(scale);
    for (size_t i = 0; i < w.size(); ++i) {
      const float step =
          std::abs(s[i / 300 * static_cast<size_t>(groups) + i % 300 / static_cast<size_t>(group)]);
      // int4 has −8 but no 8.
      ASSERT_LE(std::abs(w[i] - r[i]), std::max(0.501F * step, std::abs(w[i]) - 6.99F * step)) << i;
    }
    const auto found = ctx.to_vector<float>(ops::linear(ctx, x, small, {})),
               expected = ctx.to_vector<float>(ops::linear(ctx, x, {.value = read}, {}));
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4) << i;
  }
}

TEST(QuantizedWeight, IsNotForOtherShapes) {
  RankContext ctx;
  EXPECT_THROW(ops::quantize_weight(ctx, random_tensor(ctx, {4, 33}, 1, DType::F32), kInt4, false), Error);
  const Weight small = ops::quantize_weight(ctx, random_tensor(ctx, {4, 64}, 1, DType::F32), kInt4, false);
  EXPECT_THROW(ops::linear(ctx, random_tensor(ctx, {5, 32}, 2, DType::F32), small, {}), Error);
  EXPECT_THROW(ops::linear(ctx, random_tensor(ctx, {5, 64}, 2, DType::F64), small, {}), Error);
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
