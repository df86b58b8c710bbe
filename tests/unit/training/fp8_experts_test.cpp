#include <gtest/gtest.h>

#include <map>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"

// Training with experts, and an output layer, whose GEMMs are made in fp8.
namespace megatron {
namespace {

Config with_experts(Fp8Recipe recipe) {
  Config config;
  config.model =
      llama_style({.layers = 2, .hidden = 64, .heads = 4, .groups = 2, .ffn = 64, .vocab = 64, .length = 32});
  config.model.make_vocab_size_divisible_by = 16;
  config.model.num_moe_experts = 4;
  config.model.moe_ffn_hidden_size = 64;
  config.model.moe_router_topk = 2;
  config.model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.precision.fp8 = recipe == Fp8Recipe::blockwise ? Fp8Format::e4m3 : Fp8Format::hybrid;
  config.precision.fp8_recipe = recipe;
  config.precision.fp8_amax_history_len = 3;
  config.precision.fp8_amax_compute_algo = AmaxAlgorithm::max;
  return config;
}

Config plain(Config config) {
  config.precision.fp8 = Fp8Format::none;
  config.precision.fp8_output_proj = false;
  return config;
}

std::vector<double> losses(const Config& config, const ParallelSizes& sizes, int steps) {
  ParityRun run{.sizes = sizes, .dtype = DType::F64};
  run.lr = 1e-3;
  return train_layout(config, run, random_batches(config, steps)).losses;
}

constexpr Fp8Recipe kRecipes[] = {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::blockwise};

// Weights of a step whose fp8 form was made, by the end of their names.
int made(RankTrainer& trainer, std::string_view end) {
  int count = 0;
  for (const Parameter* parameter : trainer.parameters())
    if (parameter->name.ends_with(end)) count += parameter->fp8 && parameter->fp8->matrix.data;
  return count;
}

TEST(Fp8Experts, TrainLikeAllBits) {
  const auto exact = losses(plain(with_experts(Fp8Recipe::tensorwise)), {}, 6);
  for (Fp8Recipe recipe : kRecipes) {
    const auto narrow = losses(with_experts(recipe), {}, 6);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(narrow[i], exact[i], 1e-2 * exact[i]) << name_of(recipe) << ", step " << i;
      EXPECT_NE(narrow[i], exact[i]) << name_of(recipe) << ", step " << i;
    }
  }
}

TEST(Fp8Experts, AreMadeInFp8) {
  for (Fp8Recipe recipe : kRecipes) {
    Config config = with_experts(recipe);
    RankContext ctx;
    ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F32);
    trainer.step(ctx, random_batches(config, 1)[0], 1e-3);
    EXPECT_EQ(made(trainer, ".experts.experts.linear_fc1.weight"), 2) << name_of(recipe);
    EXPECT_EQ(made(trainer, ".experts.experts.linear_fc2.weight"), 2) << name_of(recipe);
  }
}

// Experts spread over ranks, split over them, or both, behind each dispatcher.
TEST(Fp8Experts, EveryLayoutTrainsAlike) {
  struct Layout {
    int tp = 1, ep = 1, etp = 1, dp = 1, pp = 1;
    bool gathers = false;
  };
  for (Fp8Recipe recipe : kRecipes) {
    const auto one = losses(with_experts(recipe), {}, 3);
    for (const Layout& l : {Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 2, .gathers = true},
                            Layout{.tp = 2, .etp = 2}, Layout{.tp = 2, .ep = 2}, Layout{.dp = 2},
                            Layout{.tp = 2, .ep = 2, .etp = 2, .dp = 2}, Layout{.pp = 2}}) {
      Config config = with_experts(recipe);
      config.parallel.tensor_model_parallel_size = l.tp;
      config.parallel.sequence_parallel = l.tp > 1;
      config.parallel.expert_model_parallel_size = l.ep;
      config.parallel.expert_tensor_parallel_size = l.etp;
      config.parallel.pipeline_model_parallel_size = l.pp;
      if (l.gathers) config.model.moe_token_dispatcher_type = TokenDispatcher::allgather;
      const auto many =
          losses(config, {.world = l.tp * l.pp * l.dp, .tp = l.tp, .pp = l.pp, .ep = l.ep, .etp = l.etp}, 3);
      // Scales of parts of a tensor are their own, and sums in another order now and then fall on the other
      // side of an edge between two fp8 values.
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_NEAR(many[i], one[i], 1e-3 * one[i]) << fmt::format(
            "{} tp {} ep {} etp {} dp {} pp {}, step {}", name_of(recipe), l.tp, l.ep, l.etp, l.dp, l.pp, i);
    }
  }
}

// Each expert has a history of its own, which its checkpoint keeps as a part of that of all experts.
TEST(Fp8Experts, HistoriesContinueFromACheckpoint) {
  const Config config = with_experts(Fp8Recipe::delayed);
  struct Trainer {
    Config config;
    RankContext ctx;
    ParallelContext alone;
    RankTrainer trainer{ctx, config, alone, DType::F32};
    explicit Trainer(Config c) : config(std::move(c)) {}
    double step(const std::vector<int64_t>& tokens) { return trainer.step(ctx, tokens, 1e-3).loss; }
  };
  const auto batches = random_batches(config, 4);
  Trainer whole(config), before(config), after(config);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(whole.step(batches[i]), before.step(batches[i]));
  auto from = checkpoint_tensors(before.trainer), to = checkpoint_tensors(after.trainer);
  ASSERT_EQ(from.size(), to.size());
  int of_experts = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    if (from[i].name.starts_with("fp8.history.") && from[i].name.find(".experts.") != std::string::npos) {
      ++of_experts;
      EXPECT_EQ(from[i].shard.global_shape, (Shape{4, 3, 3}));
      const std::vector<float> history = before.ctx.to_vector<float>(from[i].tensor);
      for (size_t e = 0; e < 4; ++e) EXPECT_GT(history[9 * e + 1], 0) << "of its matrix, in the last step";
      EXPECT_NE(history[1], history[10]);
    }
    after.ctx.kernels->copy(after.ctx.kernel_context(), {from[i].tensor, to[i].tensor});
  }
  EXPECT_EQ(of_experts, 4);
  after.trainer.optimizer().set_steps(2);
  after.trainer.fp8_history()->use(after.ctx);
  for (size_t i = 2; i < 4; ++i) EXPECT_EQ(after.step(batches[i]), whole.step(batches[i])) << "step " << i;
}

// Experts that ranks share out: each rank holds the histories of its own, as boxes of those of all experts.
// Those of matrices are exact after one step; inputs and gradients were rounded to fp8 in another order.
TEST(Fp8Experts, HistoriesOfEveryLayoutAreThoseOfOneRank) {
  const Config config = with_experts(Fp8Recipe::delayed);
  const auto batch = random_batches(config, 1)[0];
  const auto histories = [](RankTrainer& trainer, RankContext& ctx, auto take) {
    for (const ShardedTensor& tensor : checkpoint_tensors(trainer))
      if (tensor.name.starts_with("fp8.history.") && tensor.name.find(".experts.") != std::string::npos)
        take(tensor.name, tensor.shard, ctx.to_vector<float>(tensor.tensor));
  };
  std::map<std::string, std::vector<float>> whole;
  RankContext one;
  ParallelContext alone;
  RankTrainer single(one, config, alone, DType::F32);
  single.step(one, batch, 1e-3);
  histories(single, one,
            [&](const std::string& name, const ShardSpec&, std::vector<float> v) { whole[name] = v; });
  ASSERT_EQ(whole.size(), 4u);
  for (const bool split : {false, true}) {  // experts spread over two ranks, or each split over both
    Config own = config;
    own.parallel.expert_model_parallel_size = split ? 1 : 2;
    own.parallel.tensor_model_parallel_size = own.parallel.expert_tensor_parallel_size = split ? 2 : 1;
    own.parallel.sequence_parallel = split;
    const ParallelSizes sizes =
        split ? ParallelSizes{.world = 2, .tp = 2, .etp = 2} : ParallelSizes{.world = 2, .ep = 2};
    run_ranks(2, [&](int rank, ProcessGroup& world) {
      RankContext ctx(kCpu, 1, rank);
      const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
      RankTrainer trainer(ctx, own, parallel, DType::F32);
      const size_t share = batch.size() / static_cast<size_t>(parallel.replicas());
      trainer.step(ctx, std::span(batch).subspan(share * static_cast<size_t>(parallel.replica()), share),
                   1e-3);
      histories(trainer, ctx, [&](const std::string& name, const ShardSpec& shard, std::vector<float> v) {
        EXPECT_EQ(shard.global_shape, (Shape{4, 3, 3}));
        ASSERT_EQ(v.size(), split ? 36u : 18u);
        const auto first = static_cast<size_t>(9 * shard.blocks.at(0).global_offset[0]);
        EXPECT_EQ(first, split ? 0u : 18u * static_cast<size_t>(rank));
        for (size_t expert = 0; expert < v.size(); expert += 9) {
          EXPECT_EQ(v[expert + 1], whole.at(name)[first + expert + 1]) << name << ", rank " << rank;
          EXPECT_GT(v[expert], 0) << name << ", inputs";
          EXPECT_GT(v[expert + 2], 0) << name << ", gradients";
        }
      });
    });
  }
}

TEST(Fp8OutputLayer, TrainsLikeAllBits) {
  for (Fp8Recipe recipe : kRecipes)
    for (const bool tied : {false, true}) {
      Config config = with_experts(recipe);
      config.model.num_moe_experts = 0;
      config.model.share_embeddings_and_output_weights = tied;
      const auto exact = losses(plain(config), {}, 4), without = losses(config, {}, 4);
      config.precision.fp8_output_proj = true;
      const auto narrow = losses(config, {}, 4);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_NEAR(narrow[i], exact[i], 1e-2 * exact[i]) << name_of(recipe) << ", step " << i;
        EXPECT_NE(narrow[i], without[i]) << name_of(recipe) << ", step " << i;
      }
      Config split = config;
      split.parallel.tensor_model_parallel_size = 2;
      const auto many = losses(split, {.world = 2, .tp = 2}, 4);
      for (size_t i = 0; i < exact.size(); ++i)
        EXPECT_NEAR(many[i], narrow[i], 1e-3 * narrow[i]) << name_of(recipe) << ", tp 2, step " << i;
      RankContext ctx;
      ParallelContext alone;
      RankTrainer trainer(ctx, config, alone, DType::F32);
      trainer.step(ctx, random_batches(config, 1)[0], 1e-3);
      EXPECT_EQ(made(trainer, tied ? "embedding.word_embeddings.weight" : "output_layer.weight"), 1);
    }
}

}  // namespace
}  // namespace megatron
