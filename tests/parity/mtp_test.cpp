#include <cmath>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/objectives/lm_objective.h"
#include "megatron/ops/reduce.h"
#include "megatron/parallel/micro_batch.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"

// Multi-token prediction: what its layers look at, its gradients, and every
// layout against one rank.
namespace megatron::testing {
namespace {

Config two_ahead() {
  Config config = small_gpt();
  config.model.mtp_num_layers = 2;
  config.model.mtp_loss_scaling_factor = 0.3;
  return config;
}

Config untied_mixture() {
  Config config = two_ahead();
  ModelConfig& model = config.model;
  model.share_embeddings_and_output_weights = false;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 16;
  model.moe_layer_freq = Json(Json::Array{Json(0), Json(1), Json(0), Json(1)});
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  return config;
}

void per_token(Config& config) { config.model.calculate_per_token_loss = true; }
void zero3(Config& config) {
  config.ddp.use_megatron_fsdp = true;
  config.ddp.data_parallel_sharding_strategy = ShardingStrategy::optim_grads_params;
}

const std::vector<Layout> kLayouts = {
    {.name = "tp2", .tp = 2},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "tp2 sp pp2 vpp2", .tp = 2, .pp = 2, .vpp = 2, .sp = true},
    {.name = "pp2, a layout", .pp = 2, .stages = "Et*3|tmmL"},
    {.name = "pp2 vpp2, with a stage of their own", .pp = 2, .vpp = 2, .stages = "Et*2|(t|)*1,t,m*2|L"},
    {.name = "cp2", .cp = 2},
    {.name = "dp2 zero3", .dp = 2, .change = zero3}};

void zb_v(Config& config) { config.parallel.pipeline_schedule = PipelineSchedule::zb_v; }
void zb_h1_zero3(Config& config) {
  config.parallel.pipeline_schedule = PipelineSchedule::zb_h1;
  zero3(config);
}

// MTP layers in a stage before the loss: what they made travels on beside the hidden states.
const std::vector<Layout> kApart = {
    {.name = "with the embedding", .pp = 2, .stages = "Ettttmm|L"},
    {.name = "between", .pp = 3, .stages = "Et|tttmm|L"},
    {.name = "a stage of their own, tp2 sp", .tp = 2, .pp = 4, .sp = true, .stages = "Et|ttt|mm|L"},
    {.name = "an empty stage behind, cp2", .pp = 4, .cp = 2, .stages = "Ett|ttmm||L"},
    {.name = "zb-h1 zero3", .pp = 3, .dp = 2, .stages = "Ett|ttmm|L", .change = zb_h1_zero3},
    {.name = "in another chunk of the embedding's rank", .pp = 2, .vpp = 2, .stages = "Et|tt|tmm|L"},
    {.name = "the same, zero3", .pp = 2, .dp = 2, .vpp = 2, .stages = "Et|tt|tmm|L", .change = zero3},
    {.name = "zb-v", .pp = 2, .vpp = 2, .change = zb_v},
    {.name = "zb-v, on another rank than embedding and loss",
     .pp = 2,
     .vpp = 2,
     .stages = "Et|tt|tmm|L",
     .change = zb_v},
    {.name = "zb-v, where the third rank has no copy",
     .pp = 3,
     .vpp = 2,
     .stages = "Et|t|t|t|mm|L",
     .change = zb_v}};

Config detached(Config config) {
  config.model.mtp_detach_heads = true;
  config.optimizer.clip_grad = 0.05;
  return config;
}

TEST(MtpParity, Detached) {
  check_layouts(detached(two_ahead()), kLayouts);
  check_layouts(detached(untied_mixture()), std::span(kApart).first(4));
}

// The model learns what it would learn without them.
TEST(MtpParity, DetachedLayersLeaveTheModelAlone) {
  for (const Config& config : {detached(two_ahead()), detached(untied_mixture())}) {
    Config without = config;
    without.model.mtp_num_layers = 0;
    const auto batches = batches_for(config, 3);
    const Trained with = train(config, {}, batches), alone = train(without, {}, batches);
    for (size_t step = 0; step < batches.size(); ++step)
      EXPECT_NEAR(with.losses[step], alone.losses[step], 1e-12) << "step " << step;
    WholeTensors own;
    bool learned = false;
    for (const auto& [name, tensor] : with.parameters)
      name.starts_with("mtp.") ? void(learned = true) : void(own.emplace(name, tensor));
    std::string where;
    EXPECT_TRUE(learned);
    EXPECT_LE(difference(own, alone.parameters, &where), 1e-12) << where;
  }
}

// What a layer reads is drawn by the token's place in the global batch; states of the tokens ahead may be
// another rank's. Context-parallel ranks are refused.
TEST(MtpParity, MixedHiddenStates) {
  Config config = two_ahead();
  config.model.mtp_hsm = true;
  const auto batches = batches_for(config, 2);
  EXPECT_NE(train(config, {}, batches).losses[1], train(two_ahead(), {}, batches).losses[1]);
  std::vector<Layout> layouts = kLayouts;
  std::erase_if(layouts, [](const Layout& layout) { return layout.cp > 1; });
  check_layouts(config, layouts);
  Config mixture = untied_mixture();
  mixture.model.mtp_hsm = true;
  check_layouts(mixture, std::span(kApart).first(3));
}

TEST(MtpParity, TiedEmbedding) { check_layouts(two_ahead(), kLayouts); }
TEST(MtpParity, ApartTied) { check_layouts(two_ahead(), kApart); }
TEST(CudaParity, MtpLayers) {
  check_on_gpu(two_ahead(), kLayouts);
  check_on_gpu(untied_mixture(), std::span(kLayouts).first(3));
  check_narrow_on_gpu(two_ahead());
  Config mixed = two_ahead();
  mixed.model.mtp_hsm = true;
  check_on_gpu(mixed, std::span(kLayouts).first(2));
}
TEST(MtpParity, ApartUntiedWithExperts) { check_layouts(untied_mixture(), kApart); }

TEST(MtpParity, UntiedWithExperts) {
  std::vector<Layout> layouts = kLayouts;
  layouts.push_back({.name = "pp2 dp2 ep2", .pp = 2, .dp = 2, .ep = 2});
  check_layouts(untied_mixture(), layouts);
}

// One layer that looks one token further each time.
TEST(MtpParity, RepeatedLayer) {
  Config config = untied_mixture();
  config.model.mtp_use_repeated_layer = true;
  check_layouts(config, kLayouts);
  const auto batches = batches_for(config, 1);
  const Trained repeated = train(config, {}, batches), apart = train(untied_mixture(), {}, batches);
  EXPECT_LT(repeated.parameters.size(), apart.parameters.size());
  check_layouts(config, {kApart.begin() + 1, 1});
}

TEST(MtpParity, LossPerToken) {
  Config config = two_ahead();
  per_token(config);
  check_layouts(config, {kLayouts.begin() + 2, 1});
  check_layouts(config, {kApart.begin() + 1, 1});
}

// What is reported is the mean over all ranks' tokens.
TEST(Prediction, LossesOfTheLog) {
  std::vector<std::vector<LossTerm>> reported;
  for (const Layout& layout : {Layout{.name = "one"},
                               {.name = "pp2 dp2", .pp = 2, .dp = 2},
                               {.name = "tp2 cp2", .tp = 2, .cp = 2}}) {
    const Config config = apply(two_ahead(), layout);
    const std::vector<int64_t> tokens = batches_for(config, 1)[0];
    const ParallelSizes sizes = sizes_of(layout);
    run_ranks(sizes.world, [&](int rank, const ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
      RankTrainer trainer(ctx, config, parallel, DType::F64);
      const size_t share = tokens.size() / static_cast<size_t>(parallel.size(Axis::dp));
      StepReport report = trainer.step(
          ctx, std::span(tokens).subspan(share * static_cast<size_t>(parallel.rank(Axis::dp)), share), 0);
      if (rank == 0) reported.push_back(report.terms);
    });
    ASSERT_EQ(reported.back().size(), 2u);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(reported.back()[i].value, reported[0][i].value, 1e-12) << layout.name;
  }
  EXPECT_EQ(reported[0][1].name, "mtp_2 loss");
  EXPECT_NEAR(reported[0][0].value, std::log(50.0), 0.2);  // as good as guessing
}

TEST(Prediction, LooksFurtherAheadWithinItsSequence) {
  RankContext ctx;
  const std::vector<int64_t> tokens = {1, 2, 3, 4, 5, 6, -100, 8, 9, 10};  // two rows of 4 + 1
  const auto mtp = [&](const std::vector<std::vector<int64_t>>& documents) {
    const Batch batch = batches_of_tokens(tokens, 2, 4, {}, documents)[0];
    return to_device(ctx, batch, {}, {.mtp_layers = 2}, {.label = 0.5, .mtp = 3, .batches = 2}, DType::F64,
                     ctx.stream)
        .mtp;
  };
  const auto whole = mtp({});
  const MtpTokens &one = whole[0], &two = whole[1];
  EXPECT_EQ(ctx.to_vector<int64_t>(one.ids), (std::vector<int64_t>{2, 3, 4, 0, 0, 8, 9, 0}));
  EXPECT_EQ(ctx.to_vector<int64_t>(one.labels), (std::vector<int64_t>{3, 4, 5, -100, 8, 9, 10, -100}));
  EXPECT_EQ(ctx.item(one.share), 1.0 / (6 * 2));
  EXPECT_EQ(ctx.item(one.weight), 3 * (0.5 * 7) / 6);  // seven labels count in the main loss
  EXPECT_EQ(ctx.to_vector<int64_t>(two.ids), (std::vector<int64_t>{3, 4, 0, 0, 8, 9, 0, 0}));
  EXPECT_EQ(ctx.item(two.share), 1.0 / (4 * 2));
  EXPECT_EQ(ctx.to_vector<int64_t>(mtp({{1, 3}, {4}})[0].ids),
            (std::vector<int64_t>{0, 3, 4, 0, 0, 8, 9, 0}));
}

// The gradients are those of the main loss plus the weighted losses of the
// MTP layers.
TEST(Prediction, GradientsByDifferences) {
  RankContext ctx;
  Config config = two_ahead();
  config.model.num_layers = 1;
  GptModel model(config.model, {.first_layer = 0, .layers = 1}, {}, DType::F64);
  for (Parameter* p : model.parameters()) {
    p->allocate(ctx, DType::F64);
    p->allocate_gradient(ctx);
    p->initialize(ctx, 7);
  }
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 18; ++i) tokens.push_back(i * i % 50);
  const Batch batch = batches_of_tokens(tokens, 2, 8)[0];
  MicroBatch micro = to_device(ctx, batch, {}, {.mtp_layers = 2}, {.label = 0.5}, DType::F64, ctx.stream);
  micro.seq = model.sequences(ctx, 2, 8);
  for (size_t i : {0, 1}) micro.mtp[i].weight = ctx.full({1}, DType::F64, 0.25 * static_cast<double>(i + 1));
  LmObjective objective(2);
  const auto run = [&](std::vector<Tensor>& terms) {
    return objective.loss(ctx, model, model.run_stage(ctx, {}, micro), micro, terms);
  };
  const auto loss = [&] {
    std::vector<Tensor> terms = {ctx.zeros({1}, DType::F64), ctx.zeros({1}, DType::F64)};
    double sum = ctx.item(run(terms));
    for (size_t i : {0, 1})
      sum += ctx.item(terms[i]) / ctx.item(micro.mtp[i].share) * ctx.item(micro.mtp[i].weight);
    return sum;
  };
  Tape tape(ctx);
  {
    TapeScope scope(ctx, &tape);
    std::vector<Tensor> terms = {ctx.zeros({1}, DType::F64), ctx.zeros({1}, DType::F64)};
    tape.backward(ctx, run(terms));
  }
  for (Parameter* p : model.parameters())
    for (int64_t i : {int64_t{0}, p->value.numel() / 3, p->value.numel() / 2}) {
      double& value = p->value.data<double>()[i];
      const double kept = value, step = 1e-5;
      value = kept + step;
      const double above = loss();
      value = kept - step;
      const double below = loss();
      value = kept;
      EXPECT_NEAR(p->accumulator.main_grad.data<double>()[i], (above - below) / (2 * step), 1e-7)
          << p->name << " " << i;
    }
}

}  // namespace
}  // namespace megatron::testing
