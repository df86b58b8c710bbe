#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"
#include "megatron/training/step/rank_trainer.h"
#include "support/temp_dir.h"
#include "unit/training/fp8_layouts.h"

// Training with fp8 GEMMs that have a scale per block.
namespace megatron {
namespace {

Config blockwise(Fp8Format format = Fp8Format::e4m3) {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 256, .heads = 4, .groups = 2, .ffn = 256, .vocab = 64, .length = 64});
  config.model.make_vocab_size_divisible_by = 16;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 4;
  config.precision.fp8 = format;
  config.precision.fp8_recipe = Fp8Recipe::blockwise;
  return config;
}

std::vector<double> losses_of(const Config& config, const ParallelSizes& sizes, int steps) {
  ParityRun run{.sizes = sizes, .dtype = DType::F64};
  run.lr = 1e-3;
  return train_layout(config, run, random_batches(config, steps)).losses;
}

TEST(Fp8Blockwise, TrainsLikeAllBits) {
  Config plain = blockwise();
  plain.precision.fp8 = Fp8Format::none;
  const auto exact = losses_of(plain, {}, 4);
  const auto e4m3 = losses_of(blockwise(), {}, 4), hybrid = losses_of(blockwise(Fp8Format::hybrid), {}, 4);
  EXPECT_EQ(e4m3[0], hybrid[0]);  // they differ in gradients alone
  EXPECT_NE(e4m3[2], hybrid[2]);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(e4m3[i], exact[i], 1e-2 * exact[i]) << "step " << i;
    EXPECT_NEAR(hybrid[i], exact[i], 1e-2 * exact[i]) << "step " << i;
    EXPECT_NE(e4m3[i], exact[i]) << "step " << i;
  }
}

// Where blocks fall whole on ranks every layout has the same scales; what differs is the order of sums, which
// now and then falls on the other side of an edge between two fp8 values.
TEST(Fp8Blockwise, EveryLayoutScalesAlike) {
  const auto one = losses_of(blockwise(), {}, 3);
  for (const testing::Fp8Layout& layout : testing::kFp8Layouts) {
    const auto many = losses_of(layout.of(blockwise()), layout.sizes(), 3);
    EXPECT_NEAR(many[0], one[0], 1e-5 * one[0]) << layout.name();
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(many[i], one[i], 1e-3 * one[i]) << layout.name() << ", step " << i;
  }
}

// A file says which modules are in which format, whatever the settings of the model say.
TEST(Fp8ByModule, TheFileHasTheLastWord) {
  testing::TempDir folder;
  std::ofstream(folder / "formats.yaml") << R"(
configs:
  wide: {transformer_engine_config_type: TEQuantizationParams, training_recipe: {}}
  narrow:
    transformer_engine_config_type: TEQuantizationParams
    training_recipe: {fp8_quantization_recipe: tensorwise, override_nonquantized_autocast: true}
matchers:
  proj: {config: wide, type: glob, pattern: "*.linear_proj", enabled: true}
  fc1: {config: narrow, type: glob, pattern: "*.1.mlp.linear_fc1", enabled: true}
)";
  const auto formats = [&](const Config& config) {
    RankContext ctx;
    ParallelContext alone;
    RankTrainer trainer(ctx, config, alone, DType::F32);
    EXPECT_TRUE(std::isfinite(trainer.step(ctx, random_batches(config, 1)[0], 1e-3).loss));
    std::map<std::string, std::string> result;
    for (const Parameter* parameter : trainer.parameters())
      if (parameter->fp8)
        result[parameter->name] = !parameter->fp8->matrix.data ? "unused"
                                  : parameter->fp8->delayed    ? "delayed"
                                  : parameter->fp8->blocks     ? "blocks"
                                                               : "tensor";
    return result;
  };
  Config config = blockwise();
  config.precision.te_precision_config_file = folder / "formats.yaml";
  const auto of = [](int layer, const char* name) {
    return fmt::format("decoder.layers.{}.{}.weight", layer, name);
  };
  for (const Fp8Recipe recipe : {Fp8Recipe::blockwise, Fp8Recipe::delayed}) {
    config.precision.fp8_recipe = recipe;
    const char* usual = recipe == Fp8Recipe::delayed ? "delayed" : "blocks";
    const auto mixed = formats(config);
    EXPECT_EQ(mixed.size(), 6u);
    for (const int layer : {0, 1}) {
      EXPECT_FALSE(mixed.contains(of(layer, "self_attention.linear_proj")));
      EXPECT_EQ(mixed.at(of(layer, "self_attention.linear_qkv")), usual);
    }
    EXPECT_EQ(mixed.at(of(0, "mlp.linear_fc1")), usual);
    EXPECT_EQ(mixed.at(of(1, "mlp.linear_fc1")), "tensor");
  }
  config.precision.fp8 = Fp8Format::none;
  EXPECT_EQ(formats(config), (std::map<std::string, std::string>{{of(1, "mlp.linear_fc1"), "tensor"}}));
}

// Latent attention's five linears are among those in fp8.
TEST(Fp8Blockwise, LatentAttentionTrainsLikeAllBits) {
  Config config = blockwise();
  config.model.multi_latent_attention = true;
  config.model.num_query_groups = 0;
  config.model.rope_type = RopeType::rope;
  config.model.q_lora_rank = 64;
  config.model.kv_lora_rank = 32;
  config.model.qk_head_dim = 32;
  config.model.qk_pos_emb_head_dim = 16;
  config.model.v_head_dim = 32;
  Config plain = config;
  plain.precision.fp8 = Fp8Format::none;
  const auto exact = losses_of(plain, {}, 4), narrow = losses_of(config, {}, 4);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(narrow[i], exact[i], 1e-2 * exact[i]) << "step " << i;
    EXPECT_NE(narrow[i], exact[i]) << "step " << i;
  }
  RankContext ctx;
  ParallelContext alone;
  RankTrainer trainer(ctx, config, alone, DType::F32);
  trainer.step(ctx, random_batches(config, 1)[0], 1e-3);
  int made = 0;
  for (const Parameter* parameter : trainer.parameters())
    if (parameter->name.find("self_attention.linear_") != std::string::npos)
      made += parameter->fp8 && parameter->fp8->matrix.data;
  EXPECT_EQ(made, 2 * 5);
}

}  // namespace
}  // namespace megatron
