#include <gtest/gtest.h>

#include <cmath>

#include "megatron/training/run/routing_data.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/pass_through.h"

// Mixtures of experts: however experts and tokens are spread, training is that of one rank.
namespace megatron::testing {
namespace {

Config top2_with_losses() {
  Config config = mixture_of_experts();
  config.model.moe_aux_loss_coeff = {1e-2};
  config.model.moe_z_loss_coeff = 1e-3;
  return config;
}

Config sigmoid_with_shared_expert() {
  Config config = mixture_of_experts();
  ModelConfig& model = config.model;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_bias_update_rate = 0.05;  // large enough to change choices within the test
  model.moe_router_topk_scaling_factor = 2.5;
  model.moe_router_num_groups = 2;
  model.moe_router_group_topk = 1;
  model.moe_router_load_balancing_type = {"seq_aux_loss"};
  model.moe_aux_loss_coeff = {1e-2};
  model.moe_shared_expert_intermediate_size = 16;
  model.moe_shared_expert_gate = true;
  return config;
}

Config with_capacity() {
  Config config = mixture_of_experts();
  config.model.moe_expert_capacity_factor = 0.75;
  config.model.moe_aux_loss_coeff = {1e-2};
  return config;
}

Config with_capacity_by_position() {
  Config config = with_capacity();
  config.model.moe_token_drop_policy = TokenDropPolicy::position;
  config.model.moe_router_pre_softmax = true;
  config.model.moe_router_topk = 1;
  config.model.moe_apply_probs_on_input = true;
  return config;
}

Config with_sinkhorn() {
  Config config = mixture_of_experts();
  config.model.moe_router_load_balancing_type = {"sinkhorn"};
  return config;
}

Config with_biases() {
  Config config = with_biases_and_layernorm();
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_router_score_function = RouterScore::sqrtsoftplus;
  model.moe_input_jitter_eps = 0.1;
  return config;
}

void by_all_gather(Config& config) { config.model.moe_token_dispatcher_type = TokenDispatcher::allgather; }
void overlapped(Config& config) { config.model.moe_shared_expert_overlap = true; }

const Layout kLayouts[] = {
    {.name = "ep2", .dp = 2, .ep = 2},
    {.name = "ep4", .dp = 4, .ep = 4},
    {.name = "ep4 gathered", .dp = 4, .ep = 4, .change = by_all_gather},
    {.name = "tp2", .tp = 2},
    {.name = "tp2 gathered", .tp = 2, .change = by_all_gather},
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "tp2 etp1", .tp = 2, .etp = 1},
    {.name = "tp2 ep2 etp1", .tp = 2, .ep = 2, .etp = 1},
    {.name = "tp2 ep2 etp1 sp gathered", .tp = 2, .ep = 2, .etp = 1, .sp = true, .change = by_all_gather},
    {.name = "tp2 ep2 etp2", .tp = 2, .dp = 2, .ep = 2, .etp = 2},
    {.name = "tp2 ep2 etp2 sp gathered",
     .tp = 2,
     .dp = 2,
     .ep = 2,
     .etp = 2,
     .sp = true,
     .change = by_all_gather},
    {.name = "etp2 folded over dp", .dp = 2, .etp = 2},
    {.name = "cp2", .cp = 2},
    {.name = "cp2 ep2 tp2 etp1 sp", .tp = 2, .cp = 2, .ep = 2, .etp = 1, .sp = true},
    {.name = "cp2 tp2 ep4 gathered", .tp = 2, .cp = 2, .ep = 4, .etp = 1, .change = by_all_gather},
    {.name = "ep2 pp2", .pp = 2, .dp = 2, .ep = 2},
    {.name = "ep2 dp2", .dp = 4, .ep = 2},
    {.name = "ep2 pp2 vpp2 tp2 sp", .tp = 2, .pp = 2, .dp = 2, .vpp = 2, .ep = 2, .sp = true},
    {.name = "ep4 pp2 dp4 tp2 etp1 sp", .tp = 2, .pp = 2, .dp = 4, .ep = 4, .etp = 1, .sp = true},
};

TEST(ExpertParity, Top2WithAuxAndZLoss) { check_layouts(top2_with_losses(), kLayouts); }
TEST(ExpertParity, SigmoidGroupsExpertBiasSharedExpert) {
  check_layouts(sigmoid_with_shared_expert(), kLayouts);
}
TEST(ExpertParity, SharedExpertsWhileTokensTravel) {
  const Layout layouts[] = {{.name = "ep2", .dp = 2, .ep = 2, .change = overlapped},
                            {.name = "tp2 ep2", .tp = 2, .dp = 2, .ep = 2, .sp = true, .change = overlapped}};
  check_layouts(sigmoid_with_shared_expert(), layouts);
}
// Weight gradients that wait for an exchange of tokens, or until the input's gradient has been sent, are the
// same to the bit.
TEST(ExpertParity, DelayedWeightGradients) {
  const auto filled = [](Config& config) { config.model.overlap_moe_expert_parallel_comm = true; };
  const auto delayed = [](Config& config) { config.model.delay_wgrad_compute = true; };
  const auto both = [](Config& config) {
    config.model.overlap_dispatch_backward_with_experts_wgrad = config.model.delay_wgrad_compute = true;
    config.execution.recompute_granularity = RecomputeGranularity::selective;
    config.execution.recompute_modules = {"moe"};
  };
  const auto zero_bubble = [](Config& config) {
    config.model.overlap_moe_expert_parallel_comm = true;
    config.parallel.pipeline_schedule = PipelineSchedule::zb_h1;
  };
  const Config config = sigmoid_with_shared_expert();
  const Layout layouts[] = {
      {.name = "ep2", .dp = 2, .ep = 2, .change = filled},
      {.name = "one rank", .change = delayed},
      {.name = "ep2 pp2 vpp2", .pp = 2, .dp = 2, .vpp = 2, .ep = 2, .change = filled},
      {.name = "pp2 tp2 sp", .tp = 2, .pp = 2, .sp = true, .change = delayed},
      {.name = "ep2 tp2 etp1 sp", .tp = 2, .ep = 2, .etp = 1, .sp = true, .change = both},
      {.name = "ep2 pp2 zb-h1", .pp = 2, .dp = 2, .ep = 2, .change = zero_bubble}};
  check_layouts(config, layouts);
  const auto batches = batches_for(config, 2);
  for (const Layout& layout : layouts) {
    Layout plain = layout;
    if (layout.change == static_cast<void (*)(Config&)>(zero_bubble) ||
        layout.change == static_cast<void (*)(Config&)>(both))
      continue;
    plain.change = nullptr;
    EXPECT_EQ(train(apply(config, layout), sizes_of(layout), batches).losses,
              train(apply(config, plain), sizes_of(plain), batches).losses)
        << layout.name;
  }
}

TEST(ExpertParity, LatentExperts) {
  Config config = sigmoid_with_shared_expert();
  config.model.moe_latent_size = 12;
  config.model.add_mlp_bias = true;
  check_layouts(config, kLayouts);
}
TEST(ExpertParity, Capacity) { check_layouts(with_capacity(), kLayouts); }
TEST(ExpertParity, CapacityByPosition) { check_layouts(with_capacity_by_position(), kLayouts); }
TEST(ExpertParity, Sinkhorn) { check_layouts(with_sinkhorn(), kLayouts); }
// Random routing in which some experts are preferred, others in each step or the same in all.
TEST(ExpertParity, RandomRoutingWithPreferences) {
  const Layout layouts[] = {{.name = "ep2", .dp = 2, .ep = 2},
                            {.name = "tp2 sp ep2 etp1", .tp = 2, .ep = 2, .etp = 1, .sp = true},
                            {.name = "pp2 cp2", .pp = 2, .cp = 2}};
  std::vector<double> losses;
  for (const std::optional<double> deviation : std::vector<std::optional<double>>{{}, 3.0, -3.0}) {
    Config config = top2_with_losses();
    config.model.moe_router_force_load_balancing = !deviation;
    config.model.moe_router_force_biased = deviation;
    check_layouts(config, layouts);
    losses.push_back(train(config, {}, batches_for(config, 2)).losses[1]);
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[1], losses[2]);
}

// Experts' biases follow the quantiles of all micro-batches, wherever tokens are.
TEST(ExpertParity, QuantileBalancing) {
  Config config = mixture_of_experts();
  config.model.moe_router_load_balancing_type = {"quantile_balancing"};
  config.model.moe_router_quantile_balancing_ema = 0.25;
  const Layout layouts[] = {{.name = "ep2", .dp = 2, .ep = 2},
                            {.name = "ep4 gathered", .dp = 4, .ep = 4, .change = by_all_gather},
                            {.name = "tp2", .tp = 2},
                            {.name = "tp2 sp ep2 etp1", .tp = 2, .dp = 2, .ep = 2, .etp = 1, .sp = true},
                            {.name = "pp2 cp2 ep2", .pp = 2, .dp = 2, .cp = 2, .ep = 2}};
  check_layouts(config, layouts);
  // The spread of logits is small at first, and so is the bias, but it is there, about zero.
  const Trained one = train(config, {}, batches_for(config, kSteps));
  const WholeTensor& beta = one.parameters.at("decoder.layers.0.mlp.router.qb_beta");
  double sum = 0, largest = 0;
  for (const double value : beta.values) {
    sum += value;
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_NEAR(sum, 0, 1e-9);
  EXPECT_GT(largest, 1e-6);
}

TEST(ExpertParity, Biases) { check_layouts(with_biases(), kLayouts); }

// The load over all replicas and micro-batches so far: the layouts that keep the order of micro-batches.
TEST(ExpertParity, GlobalAuxLoss) {
  Config config = mixture_of_experts();
  config.model.moe_router_load_balancing_type = {"global_aux_loss", "seq_aux_loss"};
  config.model.moe_aux_loss_coeff = {1e-2, 1e-3};
  const Layout layouts[] = {{.name = "tp2", .tp = 2},
                            {.name = "tp2 ep2 etp1 sp", .tp = 2, .ep = 2, .etp = 1, .sp = true},
                            {.name = "tp2 pp2 sp", .tp = 2, .pp = 2, .sp = true}};
  check_layouts(config, layouts);
}

// Balancing losses and z-losses are reported without their coefficients, the same on every layout.
TEST(ExpertParity, LossesInTheReport) {
  Config config = top2_with_losses();
  config.model.moe_router_load_balancing_type = {"aux_loss", "seq_aux_loss"};
  config.model.moe_aux_loss_coeff = {1e-2, 1e-3};
  config.model.moe_per_layer_logging = true;
  const auto batches = batches_for(config, 2);
  const Trained one = train(config, {}, batches);
  const auto term = [](const Trained& trained, std::string_view name) {
    for (const LossTerm& term : trained.reports[0].terms)
      if (term.name == name) return term.value;
    return std::nan("");
  };
  ASSERT_EQ(one.reports[0].terms.size(), 3u + 3 * 3);  // three kinds in three layers with experts
  EXPECT_NEAR(term(one, "load_balancing_loss"),
              (term(one, "moe/load_balancing_loss_layer_1") + term(one, "moe/load_balancing_loss_layer_3") +
               term(one, "moe/load_balancing_loss_layer_4")) /
                  3,
              1e-12);
  EXPECT_GT(term(one, "load_balancing_loss"), 0.9);  // 1 where experts are chosen evenly
  EXPECT_GT(term(one, "seq_load_balancing_loss"), 0.9);
  EXPECT_GT(term(one, "z_loss"), 1);  // about ln² 4
  Config stronger = config;
  stronger.model.moe_aux_loss_coeff = {0.5, 0.1};
  stronger.model.moe_z_loss_coeff = 0.1;
  const Trained other = train(stronger, {}, batches);
  for (const char* name : {"load_balancing_loss", "seq_load_balancing_loss", "z_loss"})
    EXPECT_NEAR(term(other, name), term(one, name), 1e-12) << name;
  EXPECT_NE(other.losses[1], one.losses[1]);
  for (const Layout& layout :
       {Layout{.name = "tp2 ep2 etp1 sp", .tp = 2, .ep = 2, .etp = 1, .sp = true},
        Layout{.name = "ep2 pp2", .pp = 2, .dp = 2, .ep = 2}, Layout{.name = "cp2 tp2", .tp = 2, .cp = 2}}) {
    SCOPED_TRACE(layout.name);
    const Trained many = train(apply(config, layout), sizes_of(layout), batches);
    for (size_t i = 0; i < 2; ++i)
      for (size_t t = 0; t < one.reports[i].terms.size(); ++t) {
        EXPECT_EQ(many.reports[i].terms.at(t).name, one.reports[i].terms[t].name);
        EXPECT_NEAR(many.reports[i].terms.at(t).value, one.reports[i].terms[t].value, kTolerance);
      }
  }
}

// Tokens that cannot be divided evenly: 3 sequences of 5 over 2 ranks.
TEST(ExpertParity, UnevenSharesOfTokens) {
  Config config = with_capacity();
  config.model.seq_length = 5;
  config.train.micro_batch_size = 3;
  config.train.global_batch_size = 6;
  const Layout layouts[] = {{.name = "tp2", .tp = 2, .micro_batch = 3},
                            {.name = "tp2 gathered", .tp = 2, .micro_batch = 3, .change = by_all_gather},
                            {.name = "tp4 ep2 etp2", .tp = 4, .ep = 2, .etp = 2, .micro_batch = 3}};
  config.model.num_query_groups = 4;
  config.model.make_vocab_size_divisible_by = 4;
  check_layouts(config, layouts);
}

TEST(ExpertParity, NarrowerNumbers) {
  Config config = top2_with_losses();
  config.model.moe_router_dtype = RouterDType::fp32;
  auto batches = batches_for(config, 3);
  Layout layout{.name = "tp2 ep2 dp2 sp", .tp = 2, .dp = 2, .ep = 2, .sp = true};
  Trained wide = train(config, {}, batches);
  for (auto [dtype, tolerance] : {std::pair{DType::F32, 1e-5}, std::pair{DType::BF16, 2e-2}}) {
    Trained narrow = train(apply(config, layout), sizes_of(layout), batches, dtype);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_NEAR(narrow.losses[i], wide.losses[i], tolerance * wide.losses[i]) << "step " << i;
  }
}

// Experts that are given, not chosen, go with their tokens to whichever rank routes them; forward passes that
// are made again choose them again.
TEST(ExpertParity, ReplayedRouting) {
  Config config = sigmoid_with_shared_expert();
  const auto batches = batches_for(config, kSteps);
  const int64_t rows = config.train.global_batch_size, length = config.model.seq_length,
                tokens = kSteps * rows * length;
  auto experts = std::make_shared<std::vector<int64_t>>();
  for (int64_t i = 0; i < tokens * 3; ++i) {  // three layers; every seventh choice is free
    const int64_t first = (i * 5 + i / 11) % 4;
    experts->push_back(i % 7 ? first : -1);
    experts->push_back(i % 7 ? (first + 1 + i % 3) % 4 : -1);
  }
  const auto source =
      with_routing(token_source(length, kSteps * rows,
                                [&](int64_t iteration, int64_t, int64_t index) {
                                  const auto& batch = batches[static_cast<size_t>(iteration)];
                                  const auto begin = batch.begin() + index * (length + 1);
                                  return std::vector<int64_t>(begin, begin + length + 1);
                                }),
                   Tensor::wrap(experts->data(), {tokens, 3, 2}, DType::I64, kCpu, experts), rows);
  const auto replayed = [&](const Config& own, const ParallelSizes& sizes) {
    return train_layout(own, {.sizes = sizes, .source = source}, batches);
  };
  const Trained one = replayed(config, {});
  EXPECT_GT(std::abs(one.losses.back() - train(config, {}, batches).losses.back()), 1e-4);
  const auto recomputed = [](Config& own) {
    own.execution.recompute_granularity = RecomputeGranularity::full;
    own.execution.recompute_method = RecomputeMethod::uniform;
    own.execution.recompute_num_layers = 1;
  };
  for (const Layout& layout :
       {Layout{.name = "recomputed", .change = recomputed}, Layout{.name = "tp2", .tp = 2},
        Layout{.name = "cp2 ep2 tp2 etp1 sp", .tp = 2, .cp = 2, .ep = 2, .etp = 1, .sp = true},
        Layout{.name = "ep2 pp2 vpp2", .pp = 2, .dp = 2, .vpp = 2, .ep = 2}}) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, replayed(apply(config, layout), sizes_of(layout)), kTolerance);
  }
}

// A rank that hands the n-th exchange of tokens on in the wrong order.
class SwapsTokens final : public PassThrough {
 public:
  SwapsTokens(ProcessGroup inner, std::shared_ptr<int> countdown)
      : PassThrough(std::move(inner)), countdown_(std::move(countdown)) {}

 private:
  bool drops(const CommRequest& r) override {
    if (r.kind == CommKind::AllToAll && r.input.dtype() == DType::F64 && r.input.size(0) > 1 &&
        (*countdown_)-- == 0) {
      double *rows = r.input.data<double>(), *last = rows + r.input.numel() - r.input.size(1);
      std::swap_ranges(rows, rows + r.input.size(1), last);
    }
    return false;
  }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<SwapsTokens>(group, countdown_);
  }
  std::shared_ptr<int> countdown_;
};

TEST(PlantedFault, TokensThatArriveInTheWrongOrderTurnParityRed) {
  Config config = top2_with_losses();
  auto batches = batches_for(config, 2);
  Trained one = train(config, {}, batches);
  Layout layout{.name = "ep2", .dp = 2, .ep = 2};
  for (int swapped : {0, 1, 7}) {
    Trained faulty =
        train(apply(config, layout), sizes_of(layout), batches, DType::F64, [&](const ProcessGroup& world) {
          return ProcessGroup(std::make_shared<SwapsTokens>(world, std::make_shared<int>(swapped)));
        });
    std::string where;
    EXPECT_GT(difference(one.parameters, faulty.parameters, &where), 1e-6) << "exchange " << swapped;
  }
}

// On a GPU: one rank, and ranks that share it.
TEST(CudaParity, Experts) {
  const Layout layouts[] = {{.name = "ep2", .dp = 2, .ep = 2},
                            {.name = "tp2 sp ep2", .tp = 2, .ep = 2, .etp = 1, .sp = true}};
  for (const Config& config : {top2_with_losses(), sigmoid_with_shared_expert(), with_capacity()})
    check_on_gpu(config, layouts);
}

// How many tokens an expert gets is known to the GPU alone: the host still waits once a step.
TEST(CudaParity, AStepOfExpertsWaitsOnce) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  for (const Config& config : {top2_with_losses(), sigmoid_with_shared_expert()}) {
    const auto batches = batches_for(config, 4);
    RankContext ctx(Device{DeviceType::Cuda, 0});
    ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::BF16);
    trainer.step(ctx, batches[0], 1e-2);
    for (size_t step = 1; step < 4; ++step) {
      const uint64_t before = ctx.runtime->host_waits();
      trainer.step(ctx, batches[step], 1e-2);
      EXPECT_EQ(ctx.runtime->host_waits() - before, 1u) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace megatron::testing
