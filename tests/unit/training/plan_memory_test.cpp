#include <gtest/gtest.h>

#include "megatron/models/decoder_shape.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/training/plan/plan.h"

namespace megatron {
namespace {

struct PipelineCase {
  PipelineSchedule schedule;
  int64_t pp, chunks, microbatches;
};

// Fewer micro-batches are planned than there are; every rank needs the same memory as with all of them, but
// for the loss of each.
TEST(PlanMemory, AsOfAllMicroBatches) {
  for (const PipelineCase& c : {PipelineCase{PipelineSchedule::automatic, 1, 0, 40},
                                {PipelineSchedule::one_f_one_b, 4, 0, 37},
                                {PipelineSchedule::interleaved, 2, 2, 40},
                                {PipelineSchedule::zb_h1, 4, 0, 64},
                                {PipelineSchedule::zb_v, 2, 2, 31},
                                {PipelineSchedule::gpipe, 2, 0, 24}}) {
    Config config;
    config.model = llama_style(
        {.layers = 8, .hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .vocab = 256, .length = 32});
    config.parallel.pipeline_schedule = c.schedule;
    config.parallel.pipeline_model_parallel_size = c.pp;
    config.parallel.virtual_pipeline_model_parallel_size = c.chunks;
    config.train.micro_batch_size = 2;
    config.train.global_batch_size = 2 * c.microbatches;
    const ParallelSizes sizes = parallel_sizes(config, c.pp);
    const RunPlan all = plan_run(config, sizes, DType::BF16), few = plan_memory(config, sizes, DType::BF16);
    const bool cut = c.schedule != PipelineSchedule::gpipe;
    EXPECT_EQ(few.pipeline.microbatches < all.pipeline.microbatches, cut);
    for (size_t i = 0; i < all.ranks.size(); ++i)
      EXPECT_NEAR(few.ranks[i].bytes(), all.ranks[i].bytes(), 64.0 * static_cast<double>(c.microbatches))
          << static_cast<int>(c.schedule) << " rank " << i;
  }
}

TEST(PlanMemory, TableOfTheLargestRank) {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 64, .heads = 4, .groups = 2, .ffn = 160, .vocab = 256, .length = 32});
  config.parallel.pipeline_model_parallel_size = 2;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  const RunPlan plan = plan_memory(config, parallel_sizes(config, 2), DType::F32);
  const std::string table = plan.memory_table();
  EXPECT_NE(table.find(fmt::format("of rank {}, which needs the most", plan.largest().rank)),
            std::string::npos)
      << table;
  EXPECT_NE(table.find(fmt::format("{:.3f}", plan.largest().bytes() / (1 << 20))), std::string::npos)
      << table;
  // It fits into the usual terminal, with each figure below its name.
  const size_t names = table.find('\n') + 1, figures = table.find('\n', names) + 1;
  EXPECT_LE(figures - names - 1, 80u) << table;
  EXPECT_EQ(table.size() - figures, figures - names - 1) << table;
}

}  // namespace
}  // namespace megatron
