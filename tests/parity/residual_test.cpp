#include "parity/cases.h"
#include "parity/settings.h"

// A residual stream in fp32 beside parameters in bf16, and several streams that layers mix.
namespace megatron::testing {
namespace {

Config with_wide_stream() {
  Config config = small_gpt();
  config.model.fp32_residual_connection = true;
  return config;
}

// In fp64 there is nothing wider, and nothing changes; so the layouts serve in bf16, where sums over ranks
// round and losses agree as far as bf16 goes.
TEST(WideStream, EveryLayoutTrainsAlike) {
  const Config config = with_wide_stream();
  const auto batches = batches_for(config, 2);
  const Trained exact = train(small_gpt(), {}, batches), one = train(config, {}, batches, DType::BF16);
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "pp2 dp2", .pp = 2, .dp = 2},
      {.name = "pp2 in four chunks", .pp = 2, .vpp = 2},
      {.name = "cp2", .cp = 2},
      {.name = "dp2 zero 3", .dp = 2, .change = [](Config& c) { shard<3>(c, 0); }},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = train(apply(config, layout), sizes_of(layout), batches, DType::BF16);
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-2 * one.losses[i]);
      EXPECT_NEAR(many.losses[i], exact.losses[i], 2e-2 * exact.losses[i]);
    }
  }
  const Trained narrow = train(small_gpt(), {}, batches, DType::BF16);
  EXPECT_NE(narrow.losses[0], one.losses[0]) << "the stream was rounded";
}

// MTP layers have such a stream, too, on whichever stage they are.
TEST(WideStream, OfMtpLayers) {
  Config narrow = small_gpt();
  narrow.model.mtp_num_layers = 1;
  narrow.model.mtp_loss_scaling_factor = 1;
  narrow.model.position_embedding_type = PositionEmbedding::rope;
  Config wide = narrow;
  wide.model.fp32_residual_connection = true;
  const auto batches = batches_for(wide, 2);
  const Trained exact = train(narrow, {}, batches), one = train(wide, {}, batches, DType::BF16);
  const std::vector<Layout> layouts = {
      {.name = "tp2 sp", .tp = 2, .sp = true},
      {.name = "pp2", .pp = 2},
      {.name = "a stage of its own", .pp = 3, .stages = "Ettt|tm|L"},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = train(apply(wide, layout), sizes_of(layout), batches, DType::BF16);
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-2 * one.losses[i]);
      EXPECT_NEAR(many.losses[i], exact.losses[i], 2e-2 * exact.losses[i]);
    }
  }
  EXPECT_NE(train(narrow, {}, batches, DType::BF16).losses[0], one.losses[0]);
}

// A layer that is run again reads the same stream.
TEST(WideStream, RecomputeChangesNoBit) {
  const auto batches = batches_for(small_gpt(), 2);
  const Trained kept = train(with_wide_stream(), {}, batches, DType::BF16);
  Config again = with_wide_stream();
  again.execution.recompute_granularity = RecomputeGranularity::full;
  again.execution.recompute_method = RecomputeMethod::uniform;
  again.execution.recompute_num_layers = 2;
  Config norms = with_wide_stream();
  norms.execution.recompute_granularity = RecomputeGranularity::selective;
  norms.execution.recompute_modules = {"layernorm"};
  for (const Config& config : {again, norms})
    EXPECT_EQ(train(config, {}, batches, DType::BF16).losses, kept.losses);
}

Config with_streams() {
  Config config = small_gpt();
  config.model.enable_mhc_connections = true;
  config.model.mhc_num_residual_streams = 3;
  config.model.mhc_sinkhorn_iterations = 5;
  config.model.mhc_init_gating_factor = 0.5;
  return config;
}

void compute_connections_again(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"mhc", "layernorm"};
}

// check_layouts() but for the mixing of the last connection: streams are averaged behind it and its columns
// sum to one, so that its gradient is rounding alone.
void check_streams(std::span<const Layout> layouts, Device device) {
  const Config config = with_streams();
  const auto batches = batches_for(config, kSteps);
  const auto trained = [&](const Config& c, const ParallelSizes& sizes, Device where) {
    Trained result = train(c, sizes, batches, DType::F64, {}, where);
    const std::string last =
        fmt::format("decoder.layers.{}.mlp_hyper_connection.alpha_res", config.model.num_layers - 1);
    EXPECT_EQ(result.gradients.erase(last), 1u);
    return result;
  };
  const Trained one = trained(config, {}, kCpu);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, trained(apply(config, layout), sizes_of(layout), device), kTolerance);
  }
}

TEST(Streams, EveryLayoutTrainsLikeOneRank) {
  const auto whole_layers = [](Config& config) {
    config.execution.recompute_granularity = RecomputeGranularity::full;
    config.execution.recompute_method = RecomputeMethod::uniform;
    config.execution.recompute_num_layers = 2;
  };
  const std::vector<Layout> layouts = {
      {.name = "tp2", .tp = 2},
      {.name = "tp2 sp, made again", .tp = 2, .sp = true, .change = compute_connections_again},
      {.name = "pp2 dp2", .pp = 2, .dp = 2},
      {.name = "pp2 in four chunks", .pp = 2, .vpp = 2},
      {.name = "cp2", .cp = 2},
      {.name = "layers made again", .change = whole_layers},
      {.name = "dp2 zero 3", .dp = 2, .change = [](Config& c) { shard<3>(c, 0); }},
  };
  check_streams(layouts, test_device());
}

TEST(CudaParity, Streams) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  const std::vector<Layout> layouts = {{.name = "one"},
                                       {.name = "made again", .change = compute_connections_again}};
  check_streams(layouts, kGpu);
  check_narrow_on_gpu(with_streams());
}

// While gates are closed all streams are alike, and layers see them as one: but for the norm's epsilon, since
// what a layer reads is then a multiple of the stream.
TEST(Streams, BeginAsOne) {
  Config config = with_streams();
  config.model.mhc_init_gating_factor = 0;
  const auto batches = batches_for(config, 3);
  const Trained one = train(small_gpt(), {}, batches), several = train(config, {}, batches);
  EXPECT_NEAR(several.losses[0], one.losses[0], 1e-4);
  EXPECT_GT(std::abs(several.losses[2] - one.losses[2]), 1e-6);
  EXPECT_GT(std::abs(train(with_streams(), {}, batches).losses[0] - one.losses[0]), 1e-6);
}

}  // namespace
}  // namespace megatron::testing
