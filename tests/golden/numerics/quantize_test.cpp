#include "megatron/ops/quantize.h"

#include <gtest/gtest.h>

#include "support/golden.h"

// fp8 with scales: bits exactly as PyTorch's casts make them.
namespace megatron {
namespace {

using testing::golden_tensors;
using testing::is_close;
using testing::kExact;
using testing::to_device;
using testing::Tolerance;

constexpr Tolerance kLastBit{0, 2e-7, 0};  // one fp32 rounding more or less

Tensor bits_of(const ops::Quantized& q) { return q.data.reinterpret(DType::U8); }

TEST(GoldenQuantize, WholeTensors) {
  const SafetensorsFile golden = golden_tensors("numerics", "fp8_bf16");
  RankContext ctx(testing::test_device(), 2);
  const Tensor x = to_device(ctx, golden.tensor("scaled.x"));
  for (auto [name, dtype] : {std::pair{"e4m3fn", DType::F8E4M3}, {"e5m2", DType::F8E5M2}}) {
    const ops::Quantized q = ops::quantize(ctx, x, dtype);
    auto expected = [&](const char* what) { return golden.tensor(fmt::format("scaled.{}.{}", name, what)); };
    EXPECT_TRUE(is_close(ctx, name, bits_of(q), expected("bits"), kExact));
    EXPECT_TRUE(is_close(ctx, name, ops::dequantize(ctx, q, DType::F32), expected("dequant"), kLastBit));
    const double scale = testing::to_doubles(expected("scale"))[0];
    EXPECT_NEAR(ctx.item(q.inverse_scale) * scale, 1, 1e-7);
  }
}

TEST(GoldenQuantize, Blocks) {
  const SafetensorsFile golden = golden_tensors("numerics", "fp8_bf16");
  RankContext ctx(testing::test_device(), 2);
  const Tensor x = to_device(ctx, golden.tensor("block.x"));
  for (auto [rows, columns] : {std::pair{128, 128}, {1, 128}}) {
    const std::string name = fmt::format("block{}x{}", rows, columns);
    const ops::Quantized q = ops::quantize(ctx, x, DType::F8E4M3, rows, columns);
    EXPECT_TRUE(is_close(ctx, name, bits_of(q), golden.tensor(name + ".bits"), kExact));
    EXPECT_TRUE(is_close(ctx, name, q.inverse_scale, golden.tensor(name + ".scale"), kExact));
    EXPECT_TRUE(
        is_close(ctx, name, ops::dequantize(ctx, q, DType::F32), golden.tensor(name + ".dequant"), kExact));
  }
}

}  // namespace
}  // namespace megatron
