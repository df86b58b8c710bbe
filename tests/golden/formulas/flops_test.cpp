#include "megatron/training/plan/flops.h"

#include <gtest/gtest.h>

#include "golden/formulas/upstream_arguments.h"
#include "support/golden.h"

namespace megatron {
namespace {

TEST(Flops, AreMegatronLMs) {
  const Json golden = testing::golden_json("megatron_parallel", "flops");
  ASSERT_GE(golden.size(), 23u);
  for (const auto& [name, entry] : golden.as_object()) {
    const ModelConfig model = testing::config_of(entry.at("args")).model;
    for (const Json& result : entry.at("results").as_array()) {
      const Json& call = result.at("call");
      const double length = static_cast<double>(model.seq_length), batch = call.at("batch_size").as_double();
      const Json *squares = call.find("seqlen_squared_sum_in_batch"),
                 *tokens = call.find("total_real_tokens_in_batch");
      EXPECT_EQ(model_flops(model, model.vocab_size, tokens ? tokens->as_double() : batch * length,
                            squares ? squares->as_double() : batch * length * length),
                result.at("flops").at("float").as_double())
          << name << " " << call.dump();
    }
  }
}

TEST(Flops, TheHeadIsOverThePaddedVocabulary) {
  ModelConfig model =
      testing::config_of(testing::golden_json("megatron_parallel", "flops").at("gpt_dense").at("args")).model;
  const double whole = model_flops_per_token(model, 2048);
  model.vocab_size -= 943;  // GPT-2's 50257
  model.make_vocab_size_divisible_by = 128;
  EXPECT_EQ(whole - model_flops_per_token(model, 2048), 6.0 * 1024 * (51200 - 50304));
  EXPECT_EQ(model_flops_per_token(model, 2048, 8), whole);
}

TEST(Flops, MtpLayersOfAHybridModelFollowTheirPattern) {
  ModelConfig model =
      testing::config_of(testing::golden_json("megatron_parallel", "flops").at("hybrid_mamba").at("args"))
          .model;
  model.hybrid_layer_pattern = "M-M*/M-/M-";
  model.num_layers = 4;
  model.mtp_num_layers = 2;
  const double with = model_flops_per_token(model, 2048);
  model.hybrid_layer_pattern = "M-M*M-M-";
  model.num_layers = 8;
  EXPECT_EQ(with, model_flops_per_token(model, 2048));
}

}  // namespace
}  // namespace megatron
