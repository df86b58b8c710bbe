#include <gtest/gtest.h>

#include "megatron/base/json.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// A processor's peak is not known: nothing is said of it.
TEST(BenchTrain, OnACpu) {
  const Outcome outcome = run_command({"bench", "train", "gpt-10m", "--device", "cpu", "--recompute", "none",
                                       "--steps", "1", "--warmup", "0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.find("mfu_percent"), nullptr);
  EXPECT_EQ(json.find("light_percent"), nullptr);
  EXPECT_NEAR(json.at("tokens_per_second").as_double() * json.at("iteration_ms").as_double(), 8 * 256 * 1e3,
              1);
  EXPECT_NEAR(json.at("memory_gib").as_double() / json.at("predicted_memory_gib").as_double(), 1, 0.05);
  EXPECT_GT(json.at("first_step_seconds").as_double() * 1e3, json.at("iteration_ms").as_double());
}

// Mixtures of experts, made small: the settings of a case can be overridden.
TEST(BenchTrain, OfExpertsWithOverrides) {
  for (const char* name : {"qwen3-30b-a3b-12", "mixtral-small", "deepseek-v3-4"}) {
    const Outcome outcome = run_command({"bench",
                                         "train",
                                         name,
                                         "--device",
                                         "cpu",
                                         "--steps",
                                         "1",
                                         "--warmup",
                                         "0",
                                         "--json",
                                         "model.num_layers=2",
                                         "model.hidden_size=64",
                                         "model.num_attention_heads=4",
                                         "model.num_query_groups=4",
                                         "model.kv_channels=16",
                                         "model.ffn_hidden_size=64",
                                         "model.moe_ffn_hidden_size=32",
                                         "model.num_moe_experts=8",
                                         "model.vocab_size=512",
                                         "model.seq_length=32",
                                         "model.moe_layer_freq=1",
                                         "model.q_lora_rank=16",
                                         "model.kv_lora_rank=16",
                                         "model.qk_head_dim=16",
                                         "model.qk_pos_emb_head_dim=8",
                                         "model.v_head_dim=16",
                                         "model.moe_shared_expert_intermediate_size=32"});
    ASSERT_EQ(outcome.code, 0) << name << ": " << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_NEAR(json.at("tokens_per_second").as_double() * json.at("iteration_ms").as_double(), 16 * 32 * 1e3,
                1)
        << name;
  }
}

}  // namespace
}  // namespace megatron
