#include "megatron/ops/quantize.h"

#include <gtest/gtest.h>

#include "megatron/kernels/cpu/isa_tables.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;

TEST(Quantize, ValuesComeBackWithinTheFormatsRounding) {
  RankContext ctx(testing::test_device(), 2);
  Tensor x = random_tensor(ctx, {70, 300}, 1, DType::F32, 5);
  auto values = ctx.to_vector<float>(x);
  for (DType dtype : {DType::F8E4M3, DType::F8E5M2}) {
    float step = dtype == DType::F8E4M3 ? 0x1p-4f : 0x1p-3f;
    for (auto [rows, columns] : {std::pair<int64_t, int64_t>{0, 0}, {128, 128}, {1, 128}, {1, 0}}) {
      auto q = ops::quantize(ctx, x, dtype, rows, columns);
      auto back = ctx.to_vector<float>(ops::dequantize(ctx, q, DType::F32));
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(back[i], values[i], step * std::abs(values[i]) + 1e-3) << i;
    }
  }
}

TEST(Quantize, ScalesAreOnePerBlockAndZerosStayZero) {
  RankContext ctx(testing::test_device());
  Tensor x = ctx.zeros({3, 5}, DType::BF16);
  auto q = ops::quantize(ctx, x, DType::F8E4M3, 2, 4);
  EXPECT_EQ(ctx.to_vector<float>(q.inverse_scale), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(ctx.to_vector<float>(ops::dequantize(ctx, q, DType::F32)), std::vector<float>(15, 0.f));
  Tensor y = ctx.from_vector<float>({1, -448, 3, 896}, {1, 4});
  q = ops::quantize(ctx, y, DType::F8E4M3, 1, 2);
  EXPECT_EQ(ctx.to_vector<float>(q.inverse_scale), (std::vector<float>{1, 2}));
  EXPECT_EQ(ctx.to_vector<float>(ops::dequantize(ctx, q, DType::F32)), (std::vector<float>{1, -448, 3, 896}));
  EXPECT_THROW(ops::quantize(ctx, y, DType::BF16), Error);
}

// With the largest value in each row the scale is 1, and what remains is the cast: of every magnitude,
// half-way values, subnormal numbers and NaN, on every instruction set or on the GPU.
template <class Q>
void compare_with_casts(RankContext& ctx) {
  constexpr int64_t rows = 64, columns = 1021;
  std::vector<float> values(rows * columns);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = static_cast<uint32_t>(i) * 65537u;  // sixteen bits of mantissa and exponent vary
    values[i] = std::bit_cast<float>(bits & 0x80000000u ? bits : bits % 0x48000000u);
    if (std::abs(values[i]) > Q::max) values[i] = std::copysign(Q::max, values[i]);
    if (i % columns == 0) values[i] = Q::max;
  }
  Tensor x = ctx.from_vector(values, {rows, columns});
  for (int64_t block_rows : {0, 1}) {
    auto q = ctx.to_vector<Q>(ops::quantize(ctx, x, dtype_of<Q>(), block_rows).data);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(q[i].bits, Q(values[i]).bits) << values[i] << " at " << i;
  }
}

TEST(Quantize, EqualsTheCastOfEachValue) {
  RankContext ctx(testing::test_device());
  std::vector<KernelTable> tables{*ctx.kernels};
  if (ctx.device.is_cpu()) tables = {cpu::v3::make_table()};
  if (ctx.device.is_cpu() && cpu::has_v4()) tables.push_back(cpu::v4::make_table());
  for (const KernelTable& table : tables) {
    ctx.kernels = &table;
    compare_with_casts<fp8_e4m3>(ctx);
    compare_with_casts<fp8_e5m2>(ctx);
  }
}

}  // namespace
}  // namespace megatron
