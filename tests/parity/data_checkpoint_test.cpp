#include <gtest/gtest.h>

#include <mutex>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "support/temp_dir.h"
#include "support/to_doubles.h"

// A checkpoint of any sharding loads under any other, bit for bit, and training goes on as if nothing had
// been.
namespace megatron::testing {
namespace {

struct Saved {
  Layout layout;
  int zero = 0;
  bool split_masters = false;
  OptimizerKind optimizer = OptimizerKind::adam;
  const char* states = "fp32";  // number format of the moments
};

Config config_of(const Saved& run) {
  Config config = apply(small_gpt(), run.layout);
  config.ddp.use_distributed_optimizer = run.zero > 0;
  config.ddp.use_megatron_fsdp = run.zero > 1;
  config.ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(run.zero);
  config.ddp.overlap_grad_reduce = true;
  config.ddp.overlap_param_gather = run.zero > 0;
  config.ddp.bucket_size = 3000;
  config.optimizer.use_precision_aware_optimizer = run.split_masters || run.states != std::string("fp32");
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = run.states;
  if (run.states == std::string("fp16")) config.optimizer.main_params_dtype = "fp16";
  config.optimizer.optimizer = run.optimizer;
  return config;
}

// Every tensor of the state by its name in checkpoints, and the loss of the last step.
struct State {
  WholeTensors tensors;
  double loss = 0;
};

// Loads a checkpoint where one is named, takes one step, saves where asked to.
State train_from(const Saved& run, DType dtype, const std::string& from, const std::string& to, bool step) {
  State state;
  std::mutex mutex;
  Config config = config_of(run);
  auto batch = batches_for(config, 1)[0];
  ParallelSizes sizes = sizes_of(run.layout);
  run_ranks(sizes.world, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, dtype);
    auto tensors = [&] { return checkpoint_tensors(trainer); };
    if (!from.empty()) {
      const TensorSource source = checkpoint_source(from);
      load_run(ctx, source, trainer, {.packed_at_once = 37});  // ranges that end within rows
      trainer.optimizer().set_steps(source.state.iteration);
    }
    int dp = parallel.size(Axis::dp), dp_rank = parallel.rank(Axis::dp);
    std::span<const int64_t> all = batch;
    if (step) {
      double loss = trainer.step(ctx, all.subspan(all.size() / dp * dp_rank, all.size() / dp), 1e-2).loss;
      if (world.rank() == 0) state.loss = loss;
    }
    if (!to.empty())
      save_checkpoint(ctx, world, {.root = to, .state = {.iteration = 1}, .tensors = tensors()});
    for (const ShardedTensor& piece : tensors()) {
      const Tensor held = host_values({piece.name, piece.tensor, piece.packed});
      auto values = to_doubles(ctx, held);
      Parameter like(piece.name, piece.shard, Initializer::constant(0));
      std::lock_guard lock(mutex);
      put_together(state.tensors, like, values);
    }
  });
  return state;
}

const Saved kRuns[] = {
    {{.name = "one rank"}, 0},
    {{.name = "zero 1, dp2", .dp = 2}, 1},
    {{.name = "zero 1, dp2, split masters", .dp = 2}, 1, true},
    {{.name = "zero 2, tp2 dp2", .tp = 2, .dp = 2}, 2},
    {{.name = "zero 3, dp4", .dp = 4}, 3},
    {{.name = "zero 3, pp2 dp2", .pp = 2, .dp = 2}, 3},
    {{.name = "zero 3, dp4 as 2 x 2", .dp = 4, .instances = 2}, 3},
};

TEST(DataCheckpoint, AnyShardingLoadsUnderAnyOther) {
  for (const Saved& saver : kRuns) {
    TempDir folder;
    State saved = train_from(saver, DType::BF16, "", folder.path(), true);
    for (const Saved& loader : kRuns) {
      SCOPED_TRACE(fmt::format("{} -> {}", saver.layout.name, loader.layout.name));
      State loaded = train_from(loader, DType::BF16, folder.path(), "", false);
      TensorDifference difference = largest_difference(saved.tensors, loaded.tensors);
      EXPECT_EQ(difference.worst, 0) << difference.where;
    }
  }
}

TEST(DataCheckpoint, TrainingGoesOnAsIfNothingHadBeen) {
  TempDir folder;
  train_from(kRuns[4], DType::F64, "", folder.path(), true);
  State one = train_from(kRuns[0], DType::F64, folder.path(), "", true);
  for (const Saved& loader : kRuns) {
    SCOPED_TRACE(loader.layout.name);
    State many = train_from(loader, DType::F64, folder.path(), "", true);
    EXPECT_NEAR(many.loss, one.loss, kTolerance * one.loss);
    TensorDifference difference = largest_difference(one.tensors, many.tensors);
    EXPECT_LE(difference.worst, kTolerance) << difference.where;
  }
}

// States with a scale for each slice come back under the sharding that they were saved with, to the bit.
TEST(DataCheckpoint, ScaledStates) {
  for (const char* states : {"fp16", "fp8"})
    for (Saved run : {kRuns[0], kRuns[1], kRuns[4]}) {
      SCOPED_TRACE(fmt::format("{} {}", states, run.layout.name));
      run.states = states;
      TempDir folder;
      const State saved = train_from(run, DType::BF16, "", folder.path(), true);
      const State loaded = train_from(run, DType::BF16, folder.path(), "", false);
      const TensorDifference difference = largest_difference(saved.tensors, loaded.tensors);
      EXPECT_EQ(difference.worst, 0) << difference.where;
    }
}

// What SOAP keeps of whole matrices has the same bits under any layout that loads it.
TEST(DataCheckpoint, StatesOfSoap) {
  const auto with = [&](Saved run) {
    run.optimizer = OptimizerKind::soap;
    return run;
  };
  TempDir folder;
  const State saved = train_from(with(kRuns[1]), DType::BF16, "", folder.path(), true);
  for (const char* kind : {"L", "R", "Q_L", "Q_R", "eigvals_L", "eigvals_R", "exp_avg", "exp_avg_sq"})
    EXPECT_TRUE(
        saved.tensors.contains(fmt::format("optimizer.{}.decoder.layers.0.mlp.linear_fc1.weight", kind)))
        << kind;
  for (const size_t loader : {0, 3, 4}) {
    SCOPED_TRACE(kRuns[loader].layout.name);
    const State loaded = train_from(with(kRuns[loader]), DType::BF16, folder.path(), "", false);
    const TensorDifference difference = largest_difference(saved.tensors, loaded.tensors);
    EXPECT_EQ(difference.worst, 0) << difference.where;
  }
}

TEST(DataCheckpoint, StatesOfMuonAndLion) {
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::adaptive_muon, OptimizerKind::lion}) {
    SCOPED_TRACE(name_of(kind));
    const auto with = [&](Saved run) {
      run.optimizer = kind;
      return run;
    };
    TempDir folder;
    const State saved = train_from(with(kRuns[1]), DType::BF16, "", folder.path(), true);
    EXPECT_EQ(saved.tensors.contains("optimizer.momentum_buffer.decoder.layers.0.mlp.linear_fc1.weight"),
              kind != OptimizerKind::lion);
    EXPECT_EQ(saved.tensors.contains("optimizer.moment2_buffer.decoder.layers.0.mlp.linear_fc1.weight"),
              kind == OptimizerKind::adaptive_muon);
    EXPECT_TRUE(saved.tensors.contains("optimizer.exp_avg.embedding.word_embeddings.weight"));
    for (const size_t loader : {0, 3, 4}) {
      SCOPED_TRACE(kRuns[loader].layout.name);
      const State loaded = train_from(with(kRuns[loader]), DType::BF16, folder.path(), "", false);
      const TensorDifference difference = largest_difference(saved.tensors, loaded.tensors);
      EXPECT_EQ(difference.worst, 0) << difference.where;
    }
  }
}

}  // namespace
}  // namespace megatron::testing
