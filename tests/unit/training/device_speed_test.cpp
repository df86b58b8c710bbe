#include "megatron/training/plan/device_speed.h"

#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/plan/plan.h"

namespace megatron {
namespace {

TEST(DeviceSpeed, KnownGpusAndNoOthers) {
  const auto wide = peak_speed("NVIDIA H200", DType::F32), half = peak_speed("NVIDIA H200", DType::BF16);
  ASSERT_TRUE(wide && half);
  EXPECT_DOUBLE_EQ(half->flops, 989.4e12);
  EXPECT_NEAR(half->fp8_flops / half->flops, 2, 1e-3);
  EXPECT_LT(wide->flops, half->flops / 10);
  EXPECT_EQ(peak_speed("NVIDIA H200", DType::F16)->flops, half->flops);
  EXPECT_FALSE(peak_speed("NVIDIA H200", DType::F64));
  EXPECT_FALSE(peak_speed("NVIDIA H2", DType::BF16));
  EXPECT_FALSE(peak_speed("", DType::BF16));
}

// The floor of a step: no less than its arithmetic at the peak, and no more than arithmetic and traffic one
// after the other.
TEST(DeviceSpeed, FloorOfAStep) {
  Config config;
  config.model = llama_style(
      {.layers = 4, .hidden = 2048, .heads = 16, .groups = 16, .ffn = 5632, .vocab = 131072, .length = 4096});
  config.train.micro_batch_size = config.train.global_batch_size = 4;
  const auto peak = peak_speed("NVIDIA H200", DType::BF16);
  const auto seconds = [&](double flops, double bytes, double fp8) {
    return plan_run(config, {}, DType::BF16, {.flops = flops, .bytes = bytes, .fp8_flops = fp8}).seconds();
  };
  constexpr double never = 1e30;
  const double floor = seconds(peak->flops, peak->bytes, peak->fp8_flops),
               arithmetic = seconds(peak->flops, never, never), traffic = seconds(never, peak->bytes, never);
  const RunPlan plan = plan_run(config, {}, DType::BF16);
  EXPECT_GE(arithmetic, 0.999 * plan.flops_per_step / peak->flops);
  EXPECT_LE(arithmetic, 1.05 * plan.flops_per_step / peak->flops);
  EXPECT_GT(floor, std::max(arithmetic, traffic));
  EXPECT_LT(floor, arithmetic + traffic);

  config.precision.fp8 = Fp8Format::hybrid;
  config.precision.fp8_recipe = Fp8Recipe::tensorwise;
  EXPECT_LT(seconds(peak->flops, never, peak->fp8_flops), 0.9 * arithmetic);
}

}  // namespace
}  // namespace megatron
