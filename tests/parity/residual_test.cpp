#include "parity/cases.h"
#include "parity/settings.h"

// A residual stream in fp32 beside parameters in bf16.
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

}  // namespace
}  // namespace megatron::testing
