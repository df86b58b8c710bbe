#include "megatron/training/log/run_summary.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/models/decoder_shape.h"

namespace megatron {
namespace {

TEST(RunSummary, TellsModelStepLayoutAndMemory) {
  Config config;
  config.model = llama_style(
      {.layers = 4, .hidden = 64, .heads = 8, .groups = 2, .ffn = 96, .vocab = 1000, .length = 16});
  config.model.make_vocab_size_divisible_by = 128;
  config.model.num_moe_experts = 4;
  config.model.moe_ffn_hidden_size = 32;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 16;
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.expert_tensor_parallel_size = 2;
  const ParallelSizes sizes{.world = 8, .tp = 2, .pp = 2};
  const RunPlan plan = plan_memory(config, sizes, DType::F32, {});
  const std::string text = run_summary(config, plan, "the CPU");
  for (const char* part :
       {"parameters: 4 layers of 64, 8 heads of 8 on 2 key-value heads, vocabulary 1000 (padded to 1024)",
        "4 experts of 32, 2 to a token", "16 sequences of 16 tokens in 4 micro-batches of 2 a replica",
        "kernels  fp32 on the CPU", "  ranks     tp     pp    vpp     cp     dp     ep    etp    edp\n",
        "      8      2      2      1      1      2      1      2      2\n",
        "planned memory in MiB, at most"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 12) << text;
}

}  // namespace
}  // namespace megatron
