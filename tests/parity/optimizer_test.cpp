#include <cmath>

#include "parity/cases.h"
#include "parity/settings.h"

// Optimizers other than Adam, rates of groups of parameters, and what is logged of weights and gradients: no
// layout changes them.
namespace megatron::testing {
namespace {

template <MuonTpMode mode>
void tp_mode(Config& config) {
  config.optimizer.muon_tp_mode = mode;
}

Config with_muon(Config config) {
  config.optimizer.optimizer = OptimizerKind::muon;
  config.optimizer.muon_nesterov = true;
  config.optimizer.muon_extra_scale_factor = 0.2;
  return config;
}

TEST(MuonParity, DuplicatedAndDistributed) {
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "tp4, groups shared", .tp = 4},
      {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
      {.name = "tp2, Gram matrices", .tp = 2, .change = tp_mode<MuonTpMode::distributed>},
      {.name = "tp4, Gram matrices", .tp = 4, .change = tp_mode<MuonTpMode::distributed>},
      {.name = "dp2 zero 1", .dp = 2, .change = [](Config& config) { shard<1>(config, 3000); }},
      {.name = "tp2 dp2 zero 1, one bucket",
       .tp = 2,
       .dp = 2,
       .change = [](Config& config) { shard<1>(config, 0); }},
      {.name = "dp4 zero 2", .dp = 4, .change = [](Config& config) { shard<2>(config, 3000); }},
      {.name = "pp2 dp2 zero 3", .pp = 2, .dp = 2, .change = [](Config& config) { shard<3>(config, 0); }},
      {.name = "dp4 as 2 x 2, zero 1",
       .dp = 4,
       .instances = 2,
       .change = [](Config& config) { shard<1>(config, 3000); }},
  };
  check_layouts(with_muon(small_gpt()), layouts);
}

TEST(MuonParity, Experts) {
  const std::vector<Layout> layouts = {
      {.name = "ep2 dp2", .dp = 2, .ep = 2},
      {.name = "tp2 etp2 dp2", .tp = 2, .dp = 2, .etp = 2},
      {.name = "ep2 dp4 zero 1", .dp = 4, .ep = 2, .change = [](Config& config) { shard<1>(config, 3000); }},
  };
  Config config = with_muon(mixture_of_experts());
  config.optimizer.muon_split_qkv = false;
  config.optimizer.muon_scale_mode = MuonScale::unit_rms_norm;
  config.optimizer.muon_scalar_optimizer = MuonScalarOptimizer::lion;
  check_layouts(config, layouts);
}

template <SecondMoment method>
Config with_adaptive_muon(Config config) {
  config = with_muon(std::move(config));
  config.optimizer.optimizer = OptimizerKind::adaptive_muon;
  config.optimizer.adaptive_muon_moment2_method = method;
  config.optimizer.muon_coefficient_type = MuonCoefficients::polar_express;
  return config;
}

TEST(MuonParity, SecondMoments) {
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "tp2, Gram matrices", .tp = 2, .change = tp_mode<MuonTpMode::distributed>},
      {.name = "pp2 dp2 zero 1", .pp = 2, .dp = 2, .change = [](Config& config) { shard<1>(config, 3000); }},
      {.name = "tp2 dp2 zero 3", .tp = 2, .dp = 2, .change = [](Config& config) { shard<3>(config, 0); }}};
  check_layouts(with_adaptive_muon<SecondMoment::adamuon>(small_gpt()), layouts);
  check_layouts(with_adaptive_muon<SecondMoment::normuon>(small_gpt()), layouts);
  const std::vector<Layout> experts = {
      {.name = "tp2 etp2 dp2", .tp = 2, .dp = 2, .etp = 2},
      {.name = "ep2 dp4 zero 1", .dp = 4, .ep = 2, .change = [](Config& config) { shard<1>(config, 3000); }}};
  check_layouts(with_adaptive_muon<SecondMoment::normuon>(mixture_of_experts()), experts);
}

// The first gradient is diagonal in its own bases: all else is rounding, which Adam would raise with a small
// epsilon.
Config with_soap(Config config) {
  config.optimizer.optimizer = OptimizerKind::soap;
  config.optimizer.adam_eps = 1e-2;
  return config;
}

TEST(SoapParity, EveryLayout) {
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
      {.name = "tp2 dp2 zero 1", .tp = 2, .dp = 2, .change = [](Config& config) { shard<1>(config, 3000); }},
      {.name = "pp2 dp2 zero 3", .pp = 2, .dp = 2, .change = [](Config& config) { shard<3>(config, 0); }}};
  check_layouts(with_soap(small_gpt()), layouts);
  const auto plain = [](Config config) {
    config.optimizer.soap_use_kl_shampoo = false;
    return config;
  };
  check_layouts(with_soap(plain(small_gpt())), {layouts.begin() + 1, layouts.begin() + 3});
  // Experts are in every layer: a dense one between them has a gradient whose least part, squared, is below
  // the digits of a Kronecker factor.
  const std::vector<Layout> experts = {
      {.name = "tp2 etp2 dp2", .tp = 2, .dp = 2, .etp = 2},
      {.name = "ep2 dp4 zero 1", .dp = 4, .ep = 2, .change = [](Config& config) { shard<1>(config, 3000); }}};
  Config mixture = with_soap(mixture_of_experts());
  mixture.model.moe_layer_freq = Json(int64_t{1});
  check_layouts(mixture, experts);
}

TEST(CudaMuon, TensorAndDataParallel) {
  const std::vector<Layout> layouts = {
      {.name = "tp2, Gram matrices", .tp = 2, .change = tp_mode<MuonTpMode::distributed>},
      {.name = "tp2 dp2 zero 1", .tp = 2, .dp = 2, .change = [](Config& config) { shard<1>(config, 3000); }}};
  check_on_gpu(with_muon(small_gpt()), layouts);
  if (cuda_device_count() > 0) check_narrow_on_gpu(with_muon(small_gpt()));
}

// Blocks of other ranks do not count, so the result is another one; but every rank has the same.
TEST(MuonParity, Blockwise) {
  Config config = with_muon(small_gpt());
  config.optimizer.muon_tp_mode = MuonTpMode::blockwise;
  const auto batches = batches_for(config, 3);
  const Trained one = train(config, {}, batches);
  const Layout layout{.name = "tp2 dp2", .tp = 2, .dp = 2};
  const Trained many = train(apply(config, layout), sizes_of(layout), batches);
  std::string where;
  EXPECT_LE(many.ranks_apart, kTolerance);
  EXPECT_NEAR(one.losses[0], many.losses[0], kTolerance);
  EXPECT_GT(difference(one.parameters, many.parameters, &where), 1e-3);
}

// The host computes what the device would: the same bits, whichever part of the parameters it updates.
TEST(OffloadParity, UpdatesOfTheHostAreTheSame) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::sgd, OptimizerKind::lion})
    for (const double fraction : {1.0, 0.4}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(kind), fraction));
      Config config = small_gpt();
      config.optimizer.optimizer = kind;
      const auto batches = batches_for(config, 3);
      for (const Layout& layout : std::vector<Layout>{
               {.name = "one"},
               {.name = "tp2 dp2 zero 1", .tp = 2, .dp = 2, .change = [](Config& c) { shard<1>(c, 3000); }},
               {.name = "dp2 zero 3", .dp = 2, .change = [](Config& c) { shard<3>(c, 0); }}}) {
        SCOPED_TRACE(layout.name);
        Config there = config;
        there.optimizer.optimizer_cpu_offload = true;
        there.optimizer.optimizer_offload_fraction = fraction;
        const Trained own = train(apply(config, layout), sizes_of(layout), batches),
                      host = train(apply(there, layout), sizes_of(layout), batches);
        EXPECT_EQ(own.losses, host.losses);
        std::string where;
        EXPECT_EQ(difference(own.parameters, host.parameters, &where), 0) << where;
      }
    }
}

TEST(LionParity, EveryLayout) {
  Config config = small_gpt();
  config.optimizer.optimizer = OptimizerKind::lion;
  const std::vector<Layout> layouts = {
      {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
      {.name = "dp4 zero 3", .dp = 4, .change = [](Config& config) { shard<3>(config, 0); }}};
  // Small rates, since a sign may turn by rounding where a gradient is about zero.
  const auto batches = batches_for(config, kSteps);
  const Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = train(apply(config, layout), sizes_of(layout), batches);
    for (size_t i = 0; i < batches.size(); ++i) EXPECT_NEAR(one.losses[i], many.losses[i], kTolerance);
  }
}

TEST(DecoupledRate, MovesEmbeddingAndOutputAlone) {
  Config config = with_biases_and_layernorm();
  config.optimizer.decoupled_lr = 1e-3;
  const auto batches = batches_for(config, 1);
  const WholeTensors before = train_layout(config, {.lr = 0.0}, batches).parameters,
                     moved = train_layout(config, {.lr = {0.0, 1e-3, std::nullopt}}, batches).parameters;
  for (const auto& [name, tensor] : moved) {
    const bool own = name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
    EXPECT_EQ(tensor.values != before.at(name).values, own) << name;
  }
}

TEST(Logged, NormsAndZerosOfEveryLayout) {
  for (const bool experts : {false, true}) {
    Config config = experts ? mixture_of_experts() : small_gpt();
    config.model.share_embeddings_and_output_weights = !experts;
    config.logger.log_params_norm = config.logger.log_num_zeros_in_grad = true;
    const auto batches = batches_for(config, 2);
    const Trained one = train(config, {}, batches);
    double norm = 0, zeros = 0;
    for (const auto& [name, tensor] : one.parameters)
      for (const double value : tensor.values) norm += value * value;
    for (const auto& [name, tensor] : one.gradients)
      zeros += static_cast<double>(std::count(tensor.values.begin(), tensor.values.end(), 0.0));
    EXPECT_NEAR(one.reports.back().params_norm.value(), std::sqrt(norm), 1e-9);
    EXPECT_EQ(one.reports.back().num_zeros.value(), zeros);
    EXPECT_TRUE(!experts || zeros > 0);
    std::vector<Layout> layouts = {
        {.name = "tp2 pp2 dp2", .tp = 2, .pp = 2, .dp = 2},
        {.name = "tp2 dp2 zero 1", .tp = 2, .dp = 2, .change = [](Config& c) { shard<1>(c, 3000); }},
        {.name = "dp4 zero 3", .dp = 4, .change = [](Config& c) { shard<3>(c, 0); }}};
    if (experts) layouts.push_back({.name = "ep2 dp2", .dp = 2, .ep = 2});
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      const Trained many = train(apply(config, layout), sizes_of(layout), batches);
      EXPECT_EQ(many.ranks_apart < kTolerance, true);
      for (size_t i = 0; i < batches.size(); ++i) {
        EXPECT_NEAR(one.reports[i].params_norm.value(), many.reports[i].params_norm.value(), 1e-9);
        EXPECT_EQ(one.reports[i].num_zeros, many.reports[i].num_zeros);
      }
    }
  }
}

TEST(LargeNorm, SkipsTheStep) {
  Config config = small_gpt();
  config.optimizer.grad_norm_skip_threshold = 1e-3;
  const auto batches = batches_for(config, 1);
  const Trained skipped = train(config, {}, batches);
  EXPECT_EQ(skipped.reports[0].update, Update::large_norm);
  const WholeTensors before = train_layout(small_gpt(), {.lr = 0.0}, batches).parameters;
  EXPECT_EQ(largest_difference(before, skipped.parameters).worst, 0);
}

}  // namespace
}  // namespace megatron::testing
