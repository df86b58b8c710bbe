#include <cmath>

#include "parity/cases.h"
#include "parity/settings.h"

// Loss scales of fp16: they change no gradient, and overflows are seen on all ranks, skipped, and recovered
// from alike in every layout.
namespace megatron::testing {
namespace {

Config everything_scaled() {
  Config config = small_gpt();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 16;
  model.moe_layer_freq = Json(Json::Array{Json(0), Json(1), Json(0), Json(1)});
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_z_loss_coeff = 1e-3;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.mtp_num_layers = 1;
  model.mtp_loss_scaling_factor = 0.3;
  return config;
}

Config adapting(Config config, double initial, int64_t window) {
  config.precision.fp16 = true;
  config.optimizer.initial_loss_scale = initial;
  config.optimizer.hysteresis = 1;
  config.optimizer.loss_scale_window = window;
  return config;
}

TEST(LossScaleParity, AConstantScaleChangesNothing) {
  for (const bool per_token : {false, true}) {
    SCOPED_TRACE(per_token ? "per token" : "per micro-batch");
    Config plain = everything_scaled();
    plain.model.calculate_per_token_loss = per_token;
    const auto batches = batches_for(plain, 3);
    const Trained one = train(plain, {}, batches);
    Config scaled = plain;
    scaled.precision.fp16 = true;
    scaled.optimizer.loss_scale = 384;  // no power of two
    const Trained same = train(scaled, {}, batches);
    expect_equal(one, same, kTolerance);
    EXPECT_EQ(same.reports.back().loss_scale, 384);
    ASSERT_EQ(one.reports.size(), same.reports.size());
    for (size_t i = 0; i < one.reports.size(); ++i)
      EXPECT_NEAR(one.reports[i].terms.at(0).value, same.reports[i].terms.at(0).value, kTolerance);
  }
}

struct Verdicts {
  std::vector<double> scales;
  std::vector<bool> taken;
  bool operator==(const Verdicts&) const = default;
};
Verdicts verdicts(const Trained& trained) {
  Verdicts result;
  for (const StepReport& report : trained.reports) {
    result.scales.push_back(report.loss_scale);
    result.taken.push_back(report.update == Update::taken);
    EXPECT_TRUE(report.update == Update::taken || report.update == Update::overflow);
  }
  return result;
}

// Overflowing norms differ from layout to layout in whether they are NaN.
void expect_equal_where_taken(const Trained& one, const Trained& many, double tolerance) {
  ASSERT_EQ(verdicts(one), verdicts(many));
  for (size_t i = 0; i < one.reports.size(); ++i) {
    EXPECT_NEAR(one.losses[i], many.losses[i], tolerance * one.losses[i]) << "loss of step " << i;
    if (one.reports[i].update != Update::taken) continue;
    EXPECT_NEAR(one.grad_norms[i], many.grad_norms[i], tolerance * one.grad_norms[i]) << "step " << i;
  }
  EXPECT_NEAR(one.evaluated, many.evaluated, tolerance * one.evaluated);
  std::string where;
  EXPECT_LE(difference(one.parameters, many.parameters, &where), tolerance) << "parameter " << where;
}

const std::vector<Layout> kScaled = {
    {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
    {.name = "tp2 sp dp2, zero 1",
     .tp = 2,
     .dp = 2,
     .sp = true,
     .change = [](Config& config) { shard<1>(config, 3000); }},
    {.name = "dp2 cp2, zero 3", .dp = 2, .cp = 2, .change = [](Config& config) { shard<3>(config, 0); }},
};

// Squares of gradients times 2^514 are beyond fp64, those times 2^510 are not.
TEST(LossScaleParity, OverflowsAndRecovers) {
  Config config = adapting(small_gpt(), std::ldexp(1, 514), 2);
  const auto batches = batches_for(config, 8);
  const Trained one = train(config, {}, batches);
  const Verdicts seen = verdicts(one);
  EXPECT_FALSE(seen.taken.front());
  EXPECT_EQ(seen.scales.front(), std::ldexp(1, 513));  // of the next step, as Megatron logs it
  EXPECT_TRUE(std::count(seen.taken.begin(), seen.taken.end(), true) >= 2);
  EXPECT_LT(seen.scales.back(), seen.scales.front());
  for (const Layout& layout : kScaled) {
    SCOPED_TRACE(layout.name);
    expect_equal_where_taken(one, train(apply(config, layout), sizes_of(layout), batches), kTolerance);
  }
}

// A skipped step leaves no trace: what follows is what would have been without it.
TEST(LossScaleParity, SkippedStepsLeaveNoTrace) {
  Config config = adapting(small_gpt(), std::ldexp(1, 514), 1000);
  auto batches = batches_for(config, 6);
  const Trained skipped = train(config, {}, batches);
  const auto& reports = skipped.reports;
  const auto overflows = std::count_if(reports.begin(), reports.end(),
                                       [](const StepReport& r) { return r.update == Update::overflow; });
  ASSERT_GT(overflows, 0);
  ASSERT_LT(overflows, 6);
  batches.erase(batches.begin(), batches.begin() + overflows);
  const Trained clean = train(small_gpt(), {}, batches);
  std::string where;
  EXPECT_LE(difference(clean.parameters, skipped.parameters, &where), kTolerance) << where;
}

// In fp16 itself: gradients times 2^24 are beyond its 65504.
TEST(LossScaleParity, HalfPrecision) {
  for (const bool mixture : {false, true}) {
    SCOPED_TRACE(mixture ? "experts and MTP" : "dense");
    Config config = adapting(mixture ? everything_scaled() : small_gpt(), std::ldexp(1, 24), 4);
    const auto batches = batches_for(config, 12);
    const Trained one = train(config, {}, batches, DType::F16);
    const Verdicts seen = verdicts(one);
    EXPECT_FALSE(seen.taken.front());
    EXPECT_TRUE(seen.taken.back() || seen.taken[seen.taken.size() - 2]);
    const Layout& layout = kScaled[0];
    const Trained many = train(apply(config, layout), sizes_of(layout), batches, DType::F16);
    EXPECT_EQ(seen, verdicts(many));
    EXPECT_EQ(many.ranks_apart, 0);
    // The same batches in fp64, without those that overflowed.
    std::vector<std::vector<int64_t>> taken;
    for (size_t i = 0; i < batches.size(); ++i)
      if (seen.taken[i]) taken.push_back(batches[i]);
    ASSERT_GE(taken.size(), 4u);
    const Trained wide = train(mixture ? everything_scaled() : small_gpt(), {}, taken);
    for (size_t i = 0, j = 0; i < batches.size(); ++i) {
      EXPECT_NEAR(one.losses[i], many.losses[i], 4e-3 * one.losses[i]) << "step " << i;
      if (!seen.taken[i]) continue;
      EXPECT_NEAR(one.losses[i], wide.losses[j], 4e-3 * one.losses[i]) << "step " << i;
      if (j++ > 0) continue;  // weights are the same before the first update alone
      EXPECT_NEAR(one.grad_norms[i], wide.grad_norms[0], 2e-3 * one.grad_norms[i]);
    }
  }
}

TEST(CudaLossScale, HalfPrecision) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  const Config config = adapting(small_gpt(), std::ldexp(1, 24), 4);
  const auto batches = batches_for(config, 12);
  const Trained one = train(config, {}, batches, DType::F16, {}, kGpu);
  const Verdicts seen = verdicts(one);
  EXPECT_FALSE(seen.taken.front());
  std::vector<std::vector<int64_t>> taken;
  for (size_t i = 0; i < batches.size(); ++i)
    if (seen.taken[i]) taken.push_back(batches[i]);
  ASSERT_GE(taken.size(), 4u);
  const Trained wide = train(small_gpt(), {}, taken);
  for (size_t i = 0, j = 0; i < batches.size(); ++i) {
    if (!seen.taken[i]) continue;
    EXPECT_NEAR(one.losses[i], wide.losses[j], 4e-3 * one.losses[i]) << "step " << i;
    ++j;
  }
}

}  // namespace
}  // namespace megatron::testing
