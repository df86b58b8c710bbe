#include "megatron/config/resolve/precision_recipe.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/error.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/rules/nonuniform_refusals.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

const std::string kFile = R"(
configs:
  bf16: {transformer_engine_config_type: "TEQuantizationParams", training_recipe: {}}
  block:
    transformer_engine_config_type: "TEQuantizationParams"
    training_recipe: {fp8_quantization_recipe: blockwise, fp8_format: hybrid, override_nonquantized_autocast: true}
    evaluation_recipe: {fp8_quantization_recipe: blockwise, fp8_format: hybrid, override_nonquantized_autocast: true}
  unused: {training_recipe: {fp8_quantization_recipe: delayed}}
matchers:
  off: {config: unused, type: glob, pattern: "*", enabled: false}
  qkv: {config: bf16, type: glob, pattern: "*.linear_qkv", enabled: true}
  one: {config: block, type: glob, pattern: "*layers.[0-2].*fc?", enabled: true}
)";

TEST(PrecisionRecipe, TheFirstMatcherThatFitsDecides) {
  const PrecisionRecipe recipe = PrecisionRecipe::parse(kFile, "file");
  const auto plain = recipe.of("decoder.layers.0.self_attention.linear_qkv", true);
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->fp8);
  EXPECT_FALSE(recipe.of("decoder.layers.0.self_attention.linear_qkv", false));  // is plain as it is
  for (const bool quantized : {true, false}) {
    const auto block = recipe.of("decoder.layers.2.mlp.linear_fc1", quantized);
    ASSERT_TRUE(block);
    EXPECT_TRUE(block->fp8 && block->blocks);
    EXPECT_EQ(block->kind, Fp8Format::hybrid);
    EXPECT_FALSE(recipe.of("decoder.layers.3.mlp.linear_fc1", quantized));
  }
  EXPECT_FALSE(PrecisionRecipe().of("decoder.layers.2.mlp.linear_fc1", true));
}

TEST(PrecisionRecipe, WhatHopperHasNotIsReplacedAndTold) {
  const PrecisionRecipe recipe = PrecisionRecipe::parse(
      "configs: {a: {transformer_engine_config_type: TEQuantizationParams, training_recipe: "
      "{fp4_quantization_recipe: nvfp4}}}\nmatchers: {all: {config: a, type: glob, pattern: '*', enabled: "
      "true}}",
      "file");
  ASSERT_EQ(recipe.notes().size(), 1u);
  EXPECT_NE(recipe.notes()[0].find("nvfp4 is replaced by fp8 blockwise"), std::string::npos);
  EXPECT_TRUE(recipe.of("x", true)->blocks);
}

TEST(PrecisionRecipe, FaultsOfTheFileAreNamed) {
  const auto why = [](std::string_view recipe,
                      std::string_view matcher = "config: a, type: glob, pattern: x") {
    try {
      PrecisionRecipe::parse(
          fmt::format("configs: {{a: {{transformer_engine_config_type: TEQuantizationParams, {}}}}}\n"
                      "matchers: {{m: {{{}, enabled: true}}}}",
                      recipe, matcher),
          "file");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(why("training_recipe: {}"), "");
  has(why("training_recipe: {fp8_quantization_recipe: delayed}"), "use tensorwise, blockwise or mxfp8");
  has(why("training_recipe: {fp8_recipe: tensorwise}"), "fp8_recipe: is no field of a recipe");
  has(why("training_recipe: {fp8_format: e5m2}"), "use e4m3 or hybrid");
  has(why("evaluation_recipe: {}"), "has no training_recipe");
  has(why("training_recipe: {fp8_quantization_recipe: mxfp8}, evaluation_recipe: {}"), "leave it out");
  has(why("training_recipe: {}", "config: b, type: glob, pattern: x"), "b is not among the configs");
  has(why("training_recipe: {}", "config: a, type: regex, pattern: x"), "use glob");
  has(why("training_recipe: {}", "config: a, type: glob"), "has no pattern");
  has(why("training_recipe: {}", "config: a, type: glob, patern: x"), "patern: is no field of a matcher");
}

TEST(PrecisionRecipe, AFileThatSaysNothingIsNotPassedOver) {
  const auto why = [](const char* text) {
    try {
      PrecisionRecipe::parse(text, "file");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why("config: {}\nmatchers: {}"),
            "file: config: is no field of the file; use configs and matchers");
  EXPECT_EQ(why("configs: {}"), "file: has no matchers; add one that names a config");
  EXPECT_EQ(why("matchers: {m: {config: a, type: glob, pattern: x}}"),
            "file: matchers.m: has no enabled; add enabled: true, or false to leave it without effect");
  EXPECT_EQ(why("matchers: {m: [a]}"),
            "file: matchers.m: is no mapping of type, pattern, config and enabled");
  const auto off = PrecisionRecipe::parse("matchers: {m: {enabled: false}}", "file");
  ASSERT_EQ(off.notes().size(), 1u);
  EXPECT_EQ(off.notes()[0], "file: no matcher is enabled, so the file changes nothing");
}

// What guards fp8 knows of linears that the file alone puts into it, and of none where it cannot.
TEST(PrecisionRecipe, RulesOfFp8HoldForFiles) {
  testing::TempDir folder;
  const auto file = [&](const char* name, const char* training) {
    std::ofstream(folder / name) << fmt::format(
        "configs: {{a: {{transformer_engine_config_type: TEQuantizationParams, training_recipe: {{{}}}}}}}\n"
        "matchers: {{m: {{config: a, type: glob, pattern: '*', enabled: true}}}}",
        training);
    return folder / name;
  };
  const std::string plain = file("plain.yaml", ""),
                    quantized = file("quantized.yaml", "fp8_quantization_recipe: tensorwise"),
                    all = file("all.yaml",
                               "fp8_quantization_recipe: tensorwise, override_nonquantized_autocast: true");
  const auto problems = [](const std::string& path, std::vector<std::string> words) {
    words.insert(words.end(), {"--te-precision-config-file", path});
    try {
      resolve(read_sources(parse_command_line(words)),
              {.purpose = Purpose::inspect, .allow_unavailable = true});
    } catch (const Refused& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  for (const std::string& path : {plain, quantized, all}) {
    Config config;
    config.precision.te_precision_config_file = path;
    config.parallel.tensor_model_parallel_size = config.parallel.expert_tensor_parallel_size = 2;
    config.model.num_attention_heads = 4;
    config.model.attention_dropout = 0;
    EXPECT_EQ(may_have_fp8_linears(config.precision), path == all);
    EXPECT_EQ(may_lose_ranks(config), path != all);
    config.precision.fp8 = Fp8Format::hybrid;
    EXPECT_TRUE(may_have_fp8_linears(config.precision));
    const bool biases = problems(path, {"--device", "cuda"}).find("add --bf16") != std::string::npos;
    EXPECT_EQ(biases, path == all);
    EXPECT_EQ(problems(path, {"--device", "cuda", "--bf16"}), "");
    const bool unequal = problems(path, {"-tp", "2", "--ranks", "4", "--tp-spares", "1",
                                         "--num-attention-heads", "4", "--attention-dropout", "0"})
                             .find("leave --te-precision-config-file out") != std::string::npos;
    EXPECT_EQ(unequal, path == all);
  }
}

TEST(PrecisionRecipe, PatternsAreThoseOfShells) {
  EXPECT_TRUE(fits_glob("*fc1*", "decoder.layers.0.mlp.linear_fc1"));
  EXPECT_FALSE(fits_glob("*fc1", "decoder.layers.0.mlp.linear_fc1.weight"));
  EXPECT_TRUE(fits_glob("*.[!0].*", "layers.1.x"));
  EXPECT_FALSE(fits_glob("*.[!01].*", "layers.1.x"));
  EXPECT_TRUE(fits_glob("a?c", "abc"));
  EXPECT_FALSE(fits_glob("a?c", "ac"));
  EXPECT_TRUE(fits_glob("**", ""));
  EXPECT_TRUE(fits_glob("[a", "[a"));
  EXPECT_TRUE(fits_glob("*ab*c", "aababxc"));
  EXPECT_FALSE(fits_glob("*ab*c", "aababx"));
  EXPECT_FALSE(fits_glob("", "a"));
  std::string stars;
  for (int i = 0; i < 40; ++i) stars += "*a";
  EXPECT_FALSE(fits_glob(stars + "b", std::string(200, 'a')));  // at once, too
}

}  // namespace
}  // namespace megatron
