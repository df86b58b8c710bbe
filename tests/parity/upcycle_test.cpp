#include <gtest/gtest.h>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/setup/upcycle.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/settings.h"
#include "support/temp_dir.h"

// Experts that are made of a dense checkpoint.
namespace megatron::testing {
namespace {

// The loss before and after a step of a model whose weights come from a checkpoint, if one is named; saves
// what it began with where asked to.
struct Losses {
  double before = 0, after = 0;
};
Losses losses_of(const Config& config, const ParallelSizes& sizes, const std::string& from,
                 const std::string& to = "") {
  Losses losses;
  const auto batch = batches_for(config, 1)[0];
  run_ranks(sizes.world, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, DType::F64);
    if (!from.empty()) {
      TensorSource source = checkpoint_source(from);
      EXPECT_TRUE(is_dense(source));
      load_run(ctx, upcycled(std::move(source), config.model, 7), trainer, {.optimizer = false});
    }
    if (!to.empty())
      save_checkpoint(ctx, world,
                      {.root = to, .state = {.iteration = 1}, .tensors = checkpoint_tensors(trainer)});
    const int dp = parallel.size(Axis::dp), rank = parallel.rank(Axis::dp);
    const std::span<const int64_t> all = batch;
    const auto own = all.subspan(all.size() / dp * rank, all.size() / dp);
    const double before = trainer.step(ctx, own, 1e-2).loss, after = trainer.step(ctx, own, 1e-2).loss;
    if (world.rank() == 0) losses = {before, after};
  });
  return losses;
}

// Four experts, all layers alike, of a dense model with the given width.
Config experts_of(Config config, int64_t granularity) {
  ModelConfig& model = config.model;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = model.ffn_hidden_size / granularity;
  model.moe_router_topk = 2;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_use_upcycling = true;
  model.moe_upcycling_granularity = granularity;
  return config;
}

const std::vector<Layout> kLayouts = {
    {.name = "one"},
    {.name = "tp2 etp2 dp2", .tp = 2, .dp = 2, .etp = 2},
    {.name = "pp2 dp2 ep2", .pp = 2, .dp = 2, .ep = 2},
    {.name = "dp4 ep2, sharded", .dp = 4, .ep = 2, .change = [](Config& config) { shard<3>(config, 0); }},
};

void expect_dense_losses(const Config& dense, int64_t granularity) {
  TempDir folder;
  const Losses one = losses_of(dense, {}, "", folder.path());
  const Config experts = experts_of(dense, granularity);
  double after = 0;
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const Losses many = losses_of(apply(experts, layout), sizes_of(layout), folder.path());
    EXPECT_NEAR(many.before, one.before, kTolerance);
    if (after == 0) after = many.after;
    EXPECT_NEAR(many.after, after, kTolerance);
    EXPECT_LT(many.after, many.before);
  }
}

// Every expert is the MLP, and the probabilities of those that a token goes to sum to one.
TEST(Upcycling, CopiesComputeWhatTheDenseModelDoes) { expect_dense_losses(small_gpt(), 1); }

TEST(Upcycling, CopiesWithBiases) { expect_dense_losses(with_biases_and_layernorm(), 1); }

// Two experts share out the width; a squared activation gives back what the probabilities of one half each
// take, exactly.
TEST(Upcycling, PartsComputeWhatTheDenseModelDoes) {
  Config dense = small_gpt();
  dense.model.gated_linear_unit = false;
  dense.model.activation_func = Activation::squared_relu;
  expect_dense_losses(dense, 2);
}

// Gate and up are cut apart: with both halves of a gated MLP chosen, only the scale of its weights is felt.
TEST(Upcycling, PartsOfGatedMlpsStayNear) {
  TempDir folder;
  const Config dense = small_gpt();
  const Losses one = losses_of(dense, {}, "", folder.path());
  const Losses parts = losses_of(experts_of(dense, 2), {}, folder.path());
  EXPECT_NEAR(parts.before, one.before, 1e-2);
  EXPECT_NE(parts.before, one.before);
}

TEST(Upcycling, NamesWidthsThatDoNotFit) {
  TempDir folder;
  losses_of(small_gpt(), {}, "", folder.path());
  Config experts = experts_of(small_gpt(), 2);
  experts.model.moe_upcycling_granularity = 1;
  try {
    upcycled(checkpoint_source(folder.path()), experts.model, 7);
    FAIL() << "was accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("whose product is 48"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace megatron::testing
