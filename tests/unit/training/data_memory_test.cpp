#include <gtest/gtest.h>

#include <mutex>

#include "megatron/comm/run_ranks.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/step/rank_trainer.h"

// What sharding over data-parallel ranks leaves each of them with.
namespace megatron {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kBucket = 20000;

Config small(int zero, bool overlap) {
  Config config;
  config.model = llama_style(
      {.layers = 12, .hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .vocab = 256, .length = 16});
  // A tied weight's gradient would lie open from the head to the embedding.
  config.model.share_embeddings_and_output_weights = false;
  config.train.micro_batch_size = 1;
  config.ddp.use_distributed_optimizer = zero > 0;
  config.ddp.use_megatron_fsdp = zero > 1;
  config.ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(zero);
  config.ddp.overlap_grad_reduce = overlap;
  config.ddp.overlap_param_gather = overlap && zero > 0;
  config.ddp.bucket_size = kBucket;
  return config;
}

// The memory of every rank after two steps of two micro-batches, in bf16; peaks are those of the second.
std::vector<MemoryStatistics> train(const Config& config) {
  std::vector<MemoryStatistics> memory(kRanks);
  run_ranks(kRanks, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, rank);
    ParallelContext parallel = ParallelContext::from_sizes(world, {.world = kRanks});
    RankTrainer trainer(ctx, config, parallel, DType::BF16);
    std::vector<int64_t> tokens(static_cast<size_t>(2 * (config.model.seq_length + 1)), 3);
    trainer.step(ctx, tokens, 1e-3);
    ctx.allocator->reset_peaks();
    trainer.step(ctx, tokens, 1e-3);
    trainer.finish_parameters();
    memory[static_cast<size_t>(rank)] = ctx.allocator->statistics();
  });
  return memory;
}

// At least what the formula says; beyond it only padding and the allocator's size classes.
void expect_about(double bytes, double formula, const char* what) {
  EXPECT_GE(bytes, formula) << what;
  EXPECT_LE(bytes, 1.13 * formula + 8192) << what;
}

class Memory : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Overlap, Memory, ::testing::Bool());

TEST_P(Memory, IsWhatTheFormulaSays) {
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(zero);
    Config config = small(zero, GetParam());
    double n = static_cast<double>(parameter_count(config.model));
    double layer = (n - 2 * 256 * 64) / 12;
    double states = zero > 0 ? n / kRanks : n, gradients = zero > 1 ? n / kRanks : n,
           parameters = zero > 2 ? n / kRanks : n;
    for (const MemoryStatistics& memory : train(config)) {
      auto use = [&](MemoryTag tag) { return memory.by_tag[static_cast<int>(tag)]; };
      expect_about(use(MemoryTag::Optimizer).current, 12 * states, "optimizer");
      expect_about(use(MemoryTag::Gradient).current, 4 * gradients, "gradients");
      expect_about(use(MemoryTag::Parameter).current, 2 * parameters, "parameters");
      // While a step runs: the units in use and next; the bucket that fills beside one being reduced and the
      // part that arrives of it. A bucket ends with the parameter that fills it, at most fc1.
      double unit = std::max(layer, 256.0 * 64), bucket = zero == 3 ? unit : kBucket + 2 * 160 * 64;
      if (zero > 2) {
        EXPECT_GT(use(MemoryTag::Parameter).peak, use(MemoryTag::Parameter).current);
        EXPECT_LE(use(MemoryTag::Parameter).peak, 1.13 * 2 * (parameters + 2 * unit) + 8192);
      }
      if (zero > 1) {
        EXPECT_GT(use(MemoryTag::Gradient).peak, use(MemoryTag::Gradient).current);
        EXPECT_LE(use(MemoryTag::Gradient).peak, 1.13 * 4 * (gradients + 2.25 * bucket) + 8192);
      }
    }
  }
}

}  // namespace
}  // namespace megatron
