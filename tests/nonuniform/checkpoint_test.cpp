#include <gtest/gtest.h>

#include <mutex>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/rank_trainer.h"
#include "nonuniform/layouts.h"
#include "support/temp_dir.h"
#include "support/to_doubles.h"

// A checkpoint does not know which ranks were lost: layouts read each other's, bit for bit.
namespace megatron::testing {
namespace {

struct Place {
  Nonuniform layout;
  NonuniformOptions options;
};

// Loads where a folder is named, takes a step where asked to, saves. Every tensor by its name.
WholeTensors run_from(const Place& place, const Config& model, DType dtype, const std::string& from,
                      const std::string& to, bool step) {
  WholeTensors all;
  std::mutex mutex;
  const Config config = apply(model, place.layout, place.options);
  const ParallelSizes sizes = sizes_of(place.layout);
  const std::vector<int64_t> tokens = batches_for(config, 1)[0];
  run_ranks(sizes.world, [&](int, const ProcessGroup& everyone) {
    RankContext ctx(kCpu, 1, everyone.rank());
    const ProcessGroup world = active_world(everyone, sizes);
    if (!world) return;
    const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    RankTrainer trainer(ctx, config, parallel, dtype);
    if (!from.empty()) {
      const TensorSource source = checkpoint_source(from);
      load_run(ctx, source, trainer);
      trainer.optimizer().set_steps(source.state.iteration);
    }
    if (step) {
      const Shares shares = batch_shares(config, parallel, config.train.global_batch_size);
      const std::vector<Share>& own = shares.of_replica[static_cast<size_t>(parallel.replica())];
      const int64_t row = config.model.seq_length + 1, first = own.front().first;
      const auto batches = batches_of_tokens(
          std::span(tokens).subspan(static_cast<size_t>(first * row),
                                    own.size() * static_cast<size_t>(config.train.micro_batch_size * row)),
          config.train.micro_batch_size, config.model.seq_length, {}, {}, first);
      trainer.update(ctx, trainer.gradients(ctx, batches, {.iteration = 0, .batches = shares.batches()}),
                     1e-2);
    }
    const auto tensors = checkpoint_tensors(trainer);
    save_checkpoint(ctx, world, {.root = to, .state = {.iteration = 1}, .tensors = tensors});
    for (const ShardedTensor& piece : tensors) {
      const Tensor held = host_values({piece.name, piece.tensor, piece.packed});
      const auto values = to_doubles(ctx, held);
      const Parameter like(piece.name, piece.shard, Initializer::constant(0));
      std::lock_guard lock(mutex);
      put_together(all, like, values);
    }
  });
  return all;
}

void travel(const Config& model, DType dtype) {
  const Nonuniform whole{"{4,4}", 4, {{}, {}}}, odd{"{4,3}", 4, {{2}, {}}};
  const Place route[] = {{whole, {.sp = true, .distributed = true}},
                         {kFourTwo, {.sp = false, .distributed = true}},
                         {kEightSevenSix, {.sp = true, .distributed = false}},
                         {odd, {.sp = true, .distributed = true}},
                         {whole, {.sp = false, .distributed = false}}};
  TempDir folders[std::size(route)];
  const WholeTensors saved = run_from(route[0], model, dtype, "", folders[0].path(), true);
  for (size_t i = 1; i < std::size(route); ++i) {
    SCOPED_TRACE(fmt::format("{} -> {}", route[i - 1].layout.name, route[i].layout.name));
    const WholeTensors loaded =
        run_from(route[i], model, dtype, folders[i - 1].path(), folders[i].path(), false);
    const TensorDifference difference = largest_difference(saved, loaded);
    EXPECT_EQ(difference.worst, 0) << difference.where;
  }
}

TEST(NonuniformCheckpoint, WeightsAndMomentsTravelBitForBit) { travel(tied_gpt(), DType::BF16); }
TEST(NonuniformCheckpoint, FewGroups) { travel(few_groups(), DType::F32); }

// Weights and moments after a step are those of whole replicas, whichever layout took it.
TEST(NonuniformCheckpoint, AStepIsTheSameStep) {
  const Nonuniform whole{"{4,4}", 4, {{}, {}}};
  TempDir start, a, b, c;
  const Config model = few_groups();
  run_from({whole, {}}, model, DType::F64, "", start.path(), true);
  const WholeTensors one = run_from({whole, {}}, model, DType::F64, start.path(), a.path(), true);
  for (const bool distributed : {false, true}) {
    const Place place{kFourThree, {.sp = true, .distributed = distributed}};
    const WholeTensors other =
        run_from(place, model, DType::F64, start.path(), distributed ? b.path() : c.path(), true);
    const TensorDifference difference = largest_difference(one, other);
    EXPECT_LE(difference.worst, 1e-10) << difference.where;
  }
}

}  // namespace
}  // namespace megatron::testing
