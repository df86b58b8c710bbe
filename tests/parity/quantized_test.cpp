#include "megatron/config/resolve/quant_cfg.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/settings.h"

// Training with rounded linears: every layout against one rank, and what it learns.
namespace megatron::testing {
namespace {

Config rounded(Config config, const char* cfg) {
  config.distill.export_quant_cfg = cfg;
  return config;
}

void zero1(Config& config) { shard<1>(config, 0); }
void zero3(Config& config) { shard<3>(config, 0); }
void overlapped(Config& config) { config.parallel.tp_comm_overlap = true; }
void recomputed(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = 1;
}

const std::vector<Layout> kLayouts = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2 sp, overlapped", .tp = 2, .sp = true, .change = overlapped},
    {.name = "pp2 cp2", .pp = 2, .cp = 2},
    {.name = "dp2 zero3", .dp = 2, .change = zero3},
    {.name = "zb-h1 tp2", .tp = 2, .pp = 2, .change = use<PipelineSchedule::zb_h1>},
    {.name = "tp2 sp pp2 dp2", .tp = 2, .pp = 2, .dp = 2, .sp = true, .change = zero1}};

TEST(QuantizedParity, EveryConfiguration) {
  for (const char* cfg : kQuantCfgs) {
    SCOPED_TRACE(cfg);
    check_layouts(rounded(small_gpt(), cfg), kLayouts);
  }
}

TEST(QuantizedParity, BiasesAndRecomputedLayers) {
  const Layout layout{.name = "tp2 sp, recomputed", .tp = 2, .sp = true, .change = recomputed};
  check_layouts(rounded(with_biases_and_layernorm(), "NVFP4_DEFAULT_CFG"), {&layout, 1});
}

TEST(QuantizedParity, Experts) {
  const std::vector<Layout> layouts = {
      {.name = "dp2 ep2", .dp = 2, .ep = 2},
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "tp2 sp dp2 ep2 etp1", .tp = 2, .dp = 2, .ep = 2, .etp = 1, .sp = true}};
  for (const char* cfg : {"FP8_DEFAULT_CFG", "INT8_DEFAULT_CFG", "NVFP4_DEFAULT_CFG"}) {
    SCOPED_TRACE(cfg);
    check_layouts(rounded(mixture_of_experts(), cfg), layouts);
  }
}

// The configurations differ from no rounding, and from one another.
TEST(Quantized, EachConfigurationCounts) {
  const auto batches = batches_for(small_gpt(), 1);
  std::vector<double> losses = {train(small_gpt(), {}, batches).losses[0]};
  for (const char* cfg : kQuantCfgs) {
    losses.push_back(train(rounded(small_gpt(), cfg), {}, batches).losses[0]);
    EXPECT_NEAR(losses.back(), losses[0], 0.05 * losses[0]) << cfg;
  }
  std::sort(losses.begin(), losses.end());
  EXPECT_EQ(std::adjacent_find(losses.begin(), losses.end()), losses.end());
}

// A student that is rounded comes closer to the teacher that it was.
TEST(Quantized, LearnsFromTheTeacherThatItWas) {
  Config config = rounded(small_gpt(), "INT4_BLOCKWISE_WEIGHT_ONLY_CFG");
  config.model.init_method_std = 0.3;  // so that rounding tells
  RankContext ctx(test_device());
  const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
  const auto model = std::make_shared<const ModelConfig>(config.model);
  RankTrainer trainer(ctx, config, parallel, DType::F64, {.teacher = model});
  trainer.teacher()->initialize(ctx, static_cast<uint64_t>(config.rng.seed));
  const std::vector<int64_t> tokens = batches_for(config, 1)[0];
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    last = trainer.step(ctx, tokens, 1e-3).terms[1].value;
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 1e-3);
  EXPECT_LT(last, 0.6 * first);
}

Config with_mtp(TrainTarget target) {
  Config config = mixture_of_experts();
  config.model.mtp_num_layers = 1;
  config.model.moe_router_enable_expert_bias = true;
  config.model.moe_router_score_function = RouterScore::sigmoid;
  config.model.moe_router_bias_update_rate = 0.1;
  config.distill.qad_train_target = target;
  return config;
}

// What does not learn stays as it began: weights, and the biases of experts.
TEST(Quantized, OneSideLearns) {
  const auto batches = batches_for(with_mtp(TrainTarget::none), 2);
  Config still = with_mtp(TrainTarget::none);
  still.model.moe_router_bias_update_rate = 0;
  const Trained all = train(with_mtp(TrainTarget::none), {}, batches),
                untouched = train_layout(still, {.lr = 0}, batches);
  for (const TrainTarget target : {TrainTarget::base, TrainTarget::mtp, TrainTarget::both}) {
    const Trained one = train(with_mtp(target), {}, batches);
    for (const auto& [name, tensor] : one.parameters) {
      const bool learns =
          target == TrainTarget::both || name.starts_with("mtp.") == (target == TrainTarget::mtp);
      const WholeTensor& start = untouched.parameters.at(name);
      if (!learns)
        EXPECT_EQ(tensor.values, start.values) << name;
      else if (all.parameters.at(name).values != start.values)
        EXPECT_NE(tensor.values, start.values) << name;
    }
    const Layout layout{.name = "tp2 pp2", .tp = 2, .pp = 2};
    expect_equal(one, train(apply(with_mtp(target), layout), sizes_of(layout), batches), kTolerance);
  }
}

}  // namespace
}  // namespace megatron::testing
