#include <gtest/gtest.h>

#include <bit>

#include "megatron/kernels/split_float.h"
#include "megatron/optimizer/adam.h"
#include "support/gradcheck.h"
#include "support/optimizer_state.h"

// Adam with masters of which only the low halves are kept beside the bf16 parameters.
namespace megatron::testing {
namespace {

TEST(SplitMasters, AnyNumberComesBack) {
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint32_t bits = Philox::at({5, 0}, i).word[0];
    if (std::isnan(std::bit_cast<float>(bits))) continue;
    const SplitFloat parts = split_float(bits);
    ASSERT_EQ(join_float(parts), bits);
    ASSERT_EQ(rest_of_float(bits, parts.high), parts.low);
    // Nearest: no further away than half a step of bf16.
    const auto high = std::bit_cast<float>(uint32_t{parts.high} << 16), value = std::bit_cast<float>(bits);
    const auto down = std::bit_cast<float>(bits & 0xffff0000u);
    if (std::isfinite(high)) {
      ASSERT_LE(std::abs(double{high} - value), std::abs(double{down} - value));
    }
  }
  const uint32_t not_a_number = 0x7fffffff;
  const SplitFloat parts = split_float(not_a_number);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(uint32_t{parts.high} << 16)));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(join_float(parts))));
}

class SplitAdam : public ::testing::Test {
 protected:
  static constexpr int64_t kSize = 3001;

  struct Side {
    explicit Side(RankContext& ctx, AdamOptions options) : parameter("w", ShardSpec::whole({kSize}), {}) {
      Tensor value = random_tensor(ctx, {kSize}, 1, DType::BF16);
      gradient = ctx.zeros({kSize}, DType::F32);
      adam =
          std::make_unique<Adam>(ctx, std::vector<ParameterSlice>{{&parameter, 0, value, gradient}}, options);
    }
    void step(RankContext& ctx, uint64_t seed) {
      ctx.kernels->copy(ctx.kernel_context(), {random_tensor(ctx, {kSize}, seed, DType::F32), gradient});
      adam->step(ctx, 1e-3);
    }
    std::vector<float> master(RankContext& ctx) const {
      for (const OptimizerTensor& entry : adam->state())
        if (entry.kind == "master") return ctx.to_vector<float>(wide_values(ctx, entry));
      return {};
    }
    Parameter parameter;
    Tensor gradient;
    std::unique_ptr<Adam> adam;
  };

  RankContext ctx;
};

TEST_F(SplitAdam, HoldsTheBitsOfWholeMasters) {
  Side whole(ctx, {}), split(ctx, {.masters = Masters::Split});
  for (uint64_t step = 1; step <= 20; ++step) {
    whole.step(ctx, step);
    split.step(ctx, step);
    ASSERT_EQ(whole.master(ctx), split.master(ctx)) << "after step " << step;
  }
  // Parameters are the nearest of the masters on both sides, which differ in exact halves alone.
  auto values = [&](const Side& side) {
    Tensor wide = ctx.empty({kSize}, DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {side.adam->slices()[0].value, wide});
    return ctx.to_vector<float>(wide);
  };
  auto a = values(whole), b = values(split), master = whole.master(ctx);
  for (size_t i = 0; i < a.size(); ++i)
    if ((std::bit_cast<uint32_t>(master[i]) & 0xffff) != 0x8000) {
      ASSERT_EQ(a[i], b[i]) << i;
    }
}

TEST_F(SplitAdam, TakesMastersFromACheckpoint) {
  Side saved(ctx, {}), loaded(ctx, {.masters = Masters::Split});
  for (uint64_t step = 1; step <= 5; ++step) saved.step(ctx, step);
  auto state = loaded.adam->state(), source = saved.adam->state();
  ASSERT_EQ(state.size(), source.size());
  ctx.kernels->copy(ctx.kernel_context(), {saved.adam->slices()[0].value, loaded.adam->slices()[0].value});
  for (size_t i = 0; i < state.size(); ++i) set_values(ctx, state[i], wide_values(ctx, source[i]));
  EXPECT_EQ(saved.master(ctx), loaded.master(ctx));
}

TEST_F(SplitAdam, NarrowMomentsStayNear) {
  Side wide(ctx, {}), narrow(ctx, {.first = DType::BF16, .second = DType::BF16});
  for (uint64_t step = 1; step <= 20; ++step) {
    wide.step(ctx, step);
    narrow.step(ctx, step);
  }
  for (const OptimizerTensor& entry : narrow.adam->state())
    if (entry.kind != "master") {
      EXPECT_EQ(entry.tensor.dtype(), DType::BF16);
    }
  auto a = wide.master(ctx), b = narrow.master(ctx);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-3) << i;
}

// Values of a state are far below what the formats themselves reach.
TEST_F(SplitAdam, ScaledStatesHoldSmallNumbers) {
  for (const auto& [dtype, digits] : {std::pair{DType::F16, 0x1p-11}, {DType::F8E4M3, 0x1p-4}}) {
    const Tensor wide = random_tensor(ctx, {kSize}, 3, DType::F32);
    ctx.kernels->axpby(ctx.kernel_context(), {.alpha = 1e-20, .a = wide, .out = wide});
    const ScaledState state(ctx, {kSize}, dtype);
    EXPECT_EQ(ctx.to_vector<float>(state.read(ctx)), std::vector<float>(kSize, 0.f));
    state.write(ctx, wide);
    const auto values = ctx.to_vector<float>(wide), once = ctx.to_vector<float>(state.read(ctx));
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], once[i], digits * std::abs(values[i]) + 0x1p-18 * largest) << i;
    state.write(ctx, state.read(ctx));
    EXPECT_EQ(ctx.to_vector<float>(state.read(ctx)), once) << "changed by reading and writing";
  }
}

TEST_F(SplitAdam, ScaledStatesTrainAlike) {
  Side wide(ctx, {}), half(ctx, {.masters = Masters::Half, .first = DType::F16, .second = DType::F16}),
      byte(ctx, {.first = DType::F8E4M3, .second = DType::F8E4M3}), none(ctx, {.masters = Masters::None});
  constexpr uint64_t kSteps = 20;
  for (uint64_t step = 1; step <= kSteps; ++step)
    for (Side* side : {&wide, &half, &byte, &none}) side->step(ctx, step);
  auto values = [&](const Side& side) {
    Tensor copy = ctx.empty({kSize}, DType::F32);
    ctx.kernels->copy(ctx.kernel_context(), {side.adam->slices()[0].value, copy});
    return ctx.to_vector<float>(copy);
  };
  const auto master = wide.master(ctx), rounded = half.master(ctx), eight = byte.master(ctx);
  const auto bare = values(none), start = values(Side(ctx, {}));
  for (size_t i = 0; i < master.size(); ++i) {
    // Rounding loses at most half a unit in the last place a step: 2^-11 of an fp16 value, 2^-8 of a bf16
    // one. The 1e-4 and the bound of fp8 are what narrow moments make of updates of 1e-3.
    const double size = kSteps * std::abs(master[i]);
    ASSERT_NEAR(master[i], rounded[i], size * 0x1p-11 + 1e-4) << i;
    ASSERT_NEAR(master[i], eight[i], kSteps * 1e-3 * 0x1p-3) << i;
    ASSERT_NEAR(master[i], bare[i], size * 0x1p-8 + 1e-4) << i;
  }
  EXPECT_NE(master, rounded);
  EXPECT_NE(master, eight);
  EXPECT_NE(bare, start);
  EXPECT_TRUE(none.master(ctx).empty());
}

// Resuming and closed gates change nothing.
TEST_F(SplitAdam, ScaledStatesComeBackFromACheckpoint) {
  const AdamOptions options{.masters = Masters::Half, .first = DType::F8E4M3, .second = DType::F16};
  Side saved(ctx, options), loaded(ctx, options);
  for (uint64_t step = 1; step <= 5; ++step) saved.step(ctx, step);
  auto state = loaded.adam->state(), source = saved.adam->state();
  ASSERT_EQ(state.size(), 3u);
  ctx.kernels->copy(ctx.kernel_context(), {saved.adam->slices()[0].value, loaded.adam->slices()[0].value});
  for (size_t i = 0; i < state.size(); ++i) set_values(ctx, state[i], wide_values(ctx, source[i]));
  loaded.adam->set_steps(saved.adam->steps());
  const Tensor closed = ctx.zeros({1}, DType::Bool);
  loaded.adam->step(ctx, 1e-3, {}, closed);
  loaded.adam->set_steps(saved.adam->steps());
  saved.step(ctx, 6);
  loaded.step(ctx, 6);
  auto after = loaded.adam->state(), expected = saved.adam->state();
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(ctx.to_vector<float>(wide_values(ctx, after[i])),
              ctx.to_vector<float>(wide_values(ctx, expected[i])))
        << after[i].kind;
}

// Checkpoints take what the host makes of the parts for what the device computes with.
TEST_F(SplitAdam, TheHostUnpacksWhatTheDeviceReads) {
  for (const AdamOptions& options :
       {AdamOptions{.masters = Masters::Split},
        AdamOptions{.masters = Masters::Half, .first = DType::F16, .second = DType::F8E4M3}}) {
    Side side(ctx, options);
    for (uint64_t step = 1; step <= 3; ++step) side.step(ctx, step);
    int packed = 0;
    for (const OptimizerTensor& entry : side.adam->state()) {
      if (!entry.packed) continue;
      ++packed;
      const PackedValues& values = entry.packed->values;
      std::vector<const std::byte*> parts;
      for (const Tensor& part : values.parts) parts.push_back(static_cast<const std::byte*>(part.raw()));
      std::vector<float> made(kSize);
      values.unpack(parts, values.scale ? *values.scale.data<float>() : 0, made);
      EXPECT_EQ(made, ctx.to_vector<float>(wide_values(ctx, entry))) << entry.kind;
    }
    EXPECT_EQ(packed, options.masters == Masters::Split ? 1 : 3);
  }
}

}  // namespace
}  // namespace megatron::testing
