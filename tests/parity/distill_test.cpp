#include <cmath>

#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/settings.h"

// Learning from a teacher: every layout against one rank, and what is minimised.
namespace megatron::testing {
namespace {

// A larger model than the one that learns, of another kind of layers.
ModelConfig larger() {
  ModelConfig model =
      llama_style({.layers = 6, .hidden = 48, .heads = 6, .groups = 6, .ffn = 64, .vocab = 50, .length = 8});
  model.make_vocab_size_divisible_by = 16;  // padded otherwise than the one that learns
  model.share_embeddings_and_output_weights = false;
  model.init_method_std = 0.3;  // so that it is sure of something
  return model;
}

ModelConfig with_experts() {
  ModelConfig model = mixture_of_experts().model;
  model.init_method_std = 0.3;
  return model;
}

Config beside_labels(Config config) {
  config.distill.skip_lm_loss = false;
  config.distill.kd_loss_scale = 0.7;
  config.distill.logit_kl_temperature = 2;
  return config;
}

Trained taught(const Config& config, const ModelConfig& teacher, const ParallelSizes& sizes = {},
               DType dtype = DType::F64, Device device = test_device()) {
  const auto model = std::make_shared<const ModelConfig>(teacher);
  return train_layout(config, {.sizes = sizes, .dtype = dtype, .device = device, .teacher = model},
                      batches_for(config, kSteps));
}

// The losses that are reported beside the one of the labels, too.
void check_taught(const Config& config, const ModelConfig& teacher, std::span<const Layout> layouts,
                  Device device = test_device()) {
  const Trained one = taught(config, teacher, {}, DType::F64, kCpu);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = taught(apply(config, layout), teacher, sizes_of(layout), DType::F64, device);
    expect_equal(one, many, kTolerance);
    for (size_t step = 0; step < one.reports.size(); ++step) {
      const auto &expected = one.reports[step].terms, &terms = many.reports[step].terms;
      ASSERT_EQ(terms.size(), expected.size());
      for (size_t i = 0; i < terms.size(); ++i) {
        EXPECT_EQ(terms[i].name, expected[i].name);
        EXPECT_NEAR(terms[i].value, expected[i].value, kTolerance) << terms[i].name;
      }
    }
  }
}

void zero1(Config& config) { shard<1>(config, 0); }
void zero3(Config& config) { shard<3>(config, 0); }
void averaged(Config& config) {
  shard<1>(config, 0);
  config.ddp.average_in_collective = true;
}
void per_token(Config& config) { config.model.calculate_per_token_loss = true; }

const std::vector<Layout> kLayouts = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp4, where the teacher's last stage has three of six layers", .pp = 4},
    {.name = "pp2 vpp2", .pp = 2, .vpp = 2},
    {.name = "cp2", .cp = 2},
    {.name = "dp2 zero1", .dp = 2, .change = zero1},
    {.name = "dp2, averaged", .dp = 2, .change = averaged},
    {.name = "dp2 zero3", .dp = 2, .change = zero3},
    {.name = "zb-h1 tp2", .tp = 2, .pp = 2, .change = use<PipelineSchedule::zb_h1>},
    {.name = "tp2 sp pp2 cp2 dp2", .tp = 2, .pp = 2, .dp = 2, .cp = 2, .sp = true, .change = zero1}};

TEST(DistillParity, TeacherAlone) { check_taught(small_gpt(), larger(), kLayouts); }
TEST(DistillParity, BesideTheLabels) { check_taught(beside_labels(small_gpt()), larger(), kLayouts); }

TEST(DistillParity, LossPerToken) {
  Config config = beside_labels(with_biases_and_layernorm());
  per_token(config);
  check_taught(config, larger(), std::span(kLayouts).last(1));
}

// The first rank has the head of both.
TEST(DistillParity, VShapedPipeline) {
  Config config = beside_labels(small_gpt());
  ModelConfig teacher = larger();
  teacher.num_layers = 4;
  const Layout layout{.name = "zb-v", .pp = 2, .vpp = 2, .change = use<PipelineSchedule::zb_v>};
  check_taught(config, teacher, {&layout, 1});
}

TEST(DistillParity, Experts) {
  const std::vector<Layout> layouts = {
      {.name = "dp2 ep2", .dp = 2, .ep = 2},
      {.name = "tp2 sp dp2 ep2 etp1", .tp = 2, .dp = 2, .ep = 2, .etp = 1, .sp = true}};
  check_taught(beside_labels(mixture_of_experts()), with_experts(), layouts);
  check_taught(mixture_of_experts(), larger(), layouts);
  check_taught(small_gpt(), with_experts(), std::span(kLayouts).first(3));
}

TEST(DistillParity, MtpLayers) {
  Config config = beside_labels(small_gpt());
  config.model.mtp_num_layers = 1;
  check_taught(config, larger(), std::span(kLayouts).first(5));
}

TEST(CudaParity, Distillation) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  check_taught(beside_labels(small_gpt()), larger(), kLayouts, kGpu);
  for (const auto& [dtype, tolerance] : {std::pair{DType::F32, 1e-5}, {DType::BF16, 2e-2}}) {
    const Config config = beside_labels(small_gpt());
    const Trained wide = taught(config, larger(), {}, DType::F64, kCpu),
                  narrow = taught(config, larger(), {}, dtype, kGpu);
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], tolerance * wide.losses[i])
          << fmt::format("{}, step {}", dtype, i);
  }
}

// What is told of a step: the loss is the labels', the total what is minimised, neither multiplied by a loss
// scale, nor by tokens.
TEST(Distillation, LossesOfTheLog) {
  for (const bool per_token_loss : {false, true})
    for (const bool fp16 : {false, true}) {
      Config alone = small_gpt();
      alone.model.calculate_per_token_loss = per_token_loss;
      alone.precision.fp16 = fp16;
      const Config beside = beside_labels(alone);
      const StepReport a = taught(alone, larger()).reports[0], b = taught(beside, larger()).reports[0];
      const double plain = train(alone, {}, batches_for(alone, 1)).losses[0];
      EXPECT_NEAR(a.loss, plain, 1e-12);
      EXPECT_NEAR(b.loss, plain, 1e-12);
      ASSERT_EQ(a.terms.size(), 2u);
      EXPECT_EQ(a.terms[0].name, "total loss");
      EXPECT_EQ(a.terms[1].name, "logits distillation loss");
      EXPECT_GT(a.terms[1].value, 0.1);
      EXPECT_EQ(a.terms[0].value, a.terms[1].value);
      EXPECT_LT(b.terms[1].value, a.terms[1].value);  // both are less sure at a higher temperature
      EXPECT_NEAR(b.terms[0].value, 1.7 * plain, 1e-12);
    }
}

// A model that learns from the teacher alone comes to predict what it does.
TEST(Distillation, LearnsFromTheTeacher) {
  Config config = small_gpt();
  const auto model = std::make_shared<const ModelConfig>(larger());
  const std::vector<std::vector<int64_t>> batches(60, batches_for(config, 1)[0]);
  const Trained run = train_layout(config, {.device = test_device(), .lr = 1e-2, .teacher = model}, batches);
  EXPECT_LT(run.reports.back().terms[1].value, 0.5 * run.reports.front().terms[1].value);
}

// Evaluations are of the labels, and are the same with a teacher or without one.
TEST(Distillation, EvaluatesByTheLabels) {
  Config config = small_gpt();
  config.optimizer.lr = 0;
  const auto model = std::make_shared<const ModelConfig>(larger());
  const auto batches = batches_for(config, 1);
  const ParityRun still{.lr = 0, .teacher = model};
  EXPECT_NEAR(train_layout(config, still, batches).evaluated,
              train_layout(config, {.lr = 0}, batches).evaluated, 1e-13);
}

// Who predicts just what the teacher does has nothing to learn from it, also where its loss is scaled.
TEST(Distillation, ATeacherThatAgrees) {
  for (const Config& config : {small_gpt(), beside_labels(small_gpt())}) {
    RankContext ctx;
    const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
    const auto model = std::make_shared<const ModelConfig>(config.model);
    RankTrainer trainer(ctx, config, parallel, DType::F64, {.teacher = model});
    trainer.teacher()->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
    RankTrainer plain(ctx, config, parallel, DType::F64);
    const std::vector<int64_t> tokens = batches_for(config, 1)[0];
    const StepReport report = trainer.step(ctx, tokens, 0), labels = plain.step(ctx, tokens, 0);
    EXPECT_NEAR(report.terms[1].value, 0, 1e-14);
    if (config.distill.skip_lm_loss)
      EXPECT_LT(report.grad_norm, 1e-13);
    else
      EXPECT_TRUE(std::isfinite(report.grad_norm));
    EXPECT_NEAR(report.loss, labels.loss, 1e-12);
  }
}

// Labels that are ignored are not learned from either.
TEST(Distillation, IgnoredLabelsTeachNothing) {
  const Config config = small_gpt();
  RankContext ctx;
  const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
  const auto model = std::make_shared<const ModelConfig>(larger());
  RankTrainer trainer(ctx, config, parallel, DType::F64, {.teacher = model});
  trainer.teacher()->initialize(ctx, 5);
  std::vector<Batch> batches = batches_of_tokens(batches_for(config, 1)[0], 2, 8);
  for (Batch& batch : batches) batch.labels.assign(batch.labels.size(), kIgnoredLabel);
  const StepReport report = trainer.step(ctx, batches, 0);
  EXPECT_EQ(report.terms[1].value, 0);
  EXPECT_EQ(report.grad_norm, 0);
}

}  // namespace
}  // namespace megatron::testing
