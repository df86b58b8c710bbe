#include <gtest/gtest.h>

#include "parity/design_cases.h"

// Every pair of settings that can go together stands in some layout of a covering design, and all its layouts
// train like one rank.
namespace megatron::testing {
namespace {

TEST(Covering, EveryPairOfSettingsStandsInSomeLayout) {
  CoveringDesign design = layout_design();
  expect_covered(design, design.rows(2), 2);
}

TEST(Covering, EveryLayoutTrainsLikeOneRank) {
  CoveringDesign design = layout_design();
  check_rows(design, design.rows(2));
}

// Every setting at least once in narrower numbers.
TEST(Covering, SinglePrecision) {
  CoveringDesign design = layout_design();
  References references(kSteps, DType::F32);
  for (const DesignRow& row : design.rows(1)) {
    SCOPED_TRACE(design.text(row));
    DesignCase c = design_case(row);
    c.one.optimizer.optimizer = c.config.optimizer.optimizer = OptimizerKind::sgd;
    const Trained &one = references.of(c), many = train(c.config, c.sizes, references.batches(c), DType::F32);
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(one.losses[i], many.losses[i], 1e-5 * one.losses[i]) << "step " << i;
    std::string where;
    EXPECT_LE(difference(one.gradients, many.gradients, &where), 1e-4) << where;
    EXPECT_LE(difference(one.parameters, many.parameters, &where), 1e-4) << where;
  }
}

TEST(Covering, HalfPrecision) {
  CoveringDesign design = layout_design();
  References references(kSteps);
  for (const DesignRow& row : design.rows(1)) {
    SCOPED_TRACE(design.text(row));
    DesignCase c = design_case(row);
    const Trained &one = references.of(c),
                  many = train(c.config, c.sizes, references.batches(c), DType::BF16);
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(one.losses[i], many.losses[i], 2e-2 * one.losses[i]) << "step " << i;
  }
}

// Every setting at least once with what an update can have beside Adam's one rate.
TEST(Covering, MuonAndALossScaleAndRatesByGroup) {
  CoveringDesign design = layout_design();
  for (const DesignRow& row : design.rows(1)) {
    SCOPED_TRACE(design.text(row));
    DesignCase c = design_case(row);
    for (Config* config : {&c.one, &c.config}) {
      OptimizerConfig& optimizer = config->optimizer;
      optimizer.optimizer = OptimizerKind::muon;
      optimizer.muon_tp_mode = row[kSp] ? MuonTpMode::distributed : MuonTpMode::duplicated;
      optimizer.muon_extra_scale_factor = 0.2;
      optimizer.decoupled_lr = 1;
      optimizer.apply_wd_to_qk_layernorm = true;
      config->precision.fp16 = true;
      optimizer.initial_loss_scale = 0x1p513;  // too large for the first steps
      optimizer.hysteresis = 1;
      config->logger.log_params_norm = config->logger.log_num_zeros_in_grad = true;
    }
    const auto batches = random_batches(c.one, 5);
    const Rates rates{1e-2, 3e-3, 0.2};
    const Trained one = train_layout(c.one, {.lr = rates}, batches),
                  many = train_layout(c.config, {.sizes = c.sizes, .lr = rates}, batches);
    for (size_t i = 0; i < batches.size(); ++i) {
      const StepReport &a = one.reports[i], &b = many.reports[i];
      EXPECT_EQ(a.update, b.update) << "step " << i;
      EXPECT_EQ(a.loss_scale, b.loss_scale) << "step " << i;
      EXPECT_NEAR(a.loss, b.loss, kTolerance * a.loss) << "step " << i;
      EXPECT_NEAR(*a.params_norm, *b.params_norm, kTolerance * *a.params_norm) << "step " << i;
    }
    EXPECT_EQ(one.reports.front().update, Update::overflow);
    EXPECT_EQ(one.reports.back().update, Update::taken);
    std::string where;
    EXPECT_LE(difference(one.parameters, many.parameters, &where), kTolerance) << where;
  }
}

// Every pair of settings of models without context parallelism or learned positions, which refuse them,
// beside MTP layers that read mixed states.
TEST(Covering, MtpLayersOfMixedStates) {
  CoveringDesign design = layout_design();
  const auto with_mtp = [](Config& config) {
    config.model.mtp_num_layers = 2;
    config.model.mtp_loss_scaling_factor = 0.3;
    config.model.mtp_hsm = true;
  };
  size_t count = 0;
  std::map<std::string, std::pair<Trained, std::vector<std::vector<int64_t>>>> references;
  for (const DesignRow& row : design.rows(2)) {
    DesignCase c = design_case(row);
    if (row[kCp] != kNoCp || !c.config.parallel.pipeline_model_parallel_layout.empty() ||
        c.one.model.position_embedding_type == PositionEmbedding::learned_absolute)
      continue;
    SCOPED_TRACE(design.text(row));
    with_mtp(c.one);
    with_mtp(c.config);
    auto found = references.find(c.reference);
    if (found == references.end()) {
      auto batches = batches_for(c.one, 2);
      Trained one = train(c.one, {}, batches);
      found = references.emplace(c.reference, std::pair{std::move(one), std::move(batches)}).first;
    }
    const auto& [one, batches] = found->second;
    const Trained many = train(c.config, c.sizes, batches);
    for (size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(one.losses[i], many.losses[i], kTolerance * one.losses[i]) << "step " << i;
    std::string where;
    EXPECT_LE(difference(one.gradients, many.gradients, &where), kTolerance) << where;
    EXPECT_LE(difference(one.parameters, many.parameters, &where), kTolerance) << where;
    ++count;
  }
  EXPECT_GT(count, 10u);
}

// Ranks that share one GPU.
TEST(CudaParity, CoveringLayoutsOfRanksThatShareAGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  CoveringDesign design = layout_design();
  check_rows(design, design.rows(1), kSteps, Device{DeviceType::Cuda, 0});
}

}  // namespace
}  // namespace megatron::testing
