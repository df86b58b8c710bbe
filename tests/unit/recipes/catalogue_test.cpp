#include <gtest/gtest.h>

#include <set>

#include "megatron/base/error.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/recipes/recipe_family.h"
#include "support/error_of.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;

const ResolveOptions kInspect = {.purpose = Purpose::inspect, .allow_unavailable = true};

Resolved resolved_of(std::vector<std::string> args) {
  return resolve(read_sources(parse_command_line(args), {.hf = {}, .recipe = read_recipe}), kInspect);
}

TEST(Recipes, EachResolves) {
  std::set<std::string> names, families;
  size_t unavailable = 0;
  for (const Recipe& recipe : all_recipes()) {
    SCOPED_TRACE(recipe.name);
    EXPECT_TRUE(names.insert(recipe.name).second) << "the name stands twice";
    families.insert(recipe.family);
    Sources sources;
    sources.recipe = ConfigText{recipe.name, recipe_yaml(recipe)};
    try {
      const Resolved resolved = resolve(sources, kInspect);
      // What this build lacks, a recipe says of itself.
      EXPECT_EQ(resolved.unavailable.empty(), recipe.needs.empty())
          << (resolved.unavailable.empty() ? recipe.needs : resolved.unavailable.front().text());
      unavailable += !resolved.unavailable.empty();
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GE(names.size(), 298u);
  EXPECT_GE(families.size(), 27u);
  EXPECT_GT(unavailable, 50u);  // PEFT, MXFP8, NVFP4
}

TEST(Recipes, EveryFamilyHasATinyOne) {
  std::set<std::string> families, tiny;
  for (const Recipe& recipe : all_recipes()) {
    families.insert(recipe.family);
    if (recipe.is_tiny()) tiny.insert(recipe.family);
  }
  EXPECT_EQ(families, tiny);
}

TEST(Recipes, SaysWhatItsNameSays) {
  const Recipe recipe = find_recipe("llama3_70b_pretrain_32gpu_h100_bf16_16k");
  EXPECT_EQ(recipe.family, "llama");
  EXPECT_EQ(recipe.model, "llama3_70b");
  EXPECT_EQ(recipe.task, "pretrain");
  EXPECT_EQ(recipe.gpus, 32);
  EXPECT_EQ(recipe.gpu, "h100");
  EXPECT_EQ(recipe.precision, "bf16");
  EXPECT_EQ(recipe.variant, "16k");
  EXPECT_EQ(recipe.hf, "meta-llama/Meta-Llama-3-70B");
}

TEST(Recipes, GivesTheRowOfTheCatalogue) {
  const Config config = resolved_of({"--recipe", "llama3_70b_pretrain_32gpu_h100_bf16_16k"}).config;
  EXPECT_EQ(config.model.num_layers, 80);
  EXPECT_EQ(config.model.hidden_size, 8192);
  EXPECT_EQ(config.model.num_query_groups, 8);
  EXPECT_EQ(config.parallel.tensor_model_parallel_size, 8);
  EXPECT_EQ(config.parallel.pipeline_model_parallel_size, 2);
  EXPECT_EQ(config.parallel.context_parallel_size, 2);
  EXPECT_TRUE(config.parallel.sequence_parallel);
  EXPECT_EQ(config.model.seq_length, 16384);
  EXPECT_EQ(config.train.micro_batch_size, 1);
  EXPECT_EQ(config.train.global_batch_size, 512);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.min_lr, 3e-5);
  EXPECT_EQ(config.scheduler.lr_warmup_iters, 2000);
  EXPECT_EQ(config.train.train_iters, 1168251);
  EXPECT_TRUE(config.precision.bf16);
}

TEST(Recipes, KnowsBridgesNames) {
  EXPECT_EQ(find_recipe("llama32_1b_pretrain_config").name, "llama32_1b_pretrain_1gpu_h100_bf16");
  EXPECT_EQ(find_recipe("llama3_8b_pretrain").name, "llama3_8b_pretrain_2gpu_h100_bf16");
  EXPECT_EQ(find_recipe("qwen3_8b_pretrain_config").name, "qwen3_8b_pretrain_4gpu_h100_bf16");
  EXPECT_EQ(find_recipe("llama3_8b_pretrain_2gpu_h100_fp8cs_config").name,
            "llama3_8b_pretrain_2gpu_h100_fp8cs");
}

TEST(Recipes, NamesTheNearest) {
  const std::string text = error_of([] { find_recipe("lama3_8b_pretrain_2gpu_h100_bf16"); });
  EXPECT_NE(text.find("llama3_8b_pretrain_2gpu_h100_bf16"), std::string::npos) << text;
  EXPECT_NE(error_of([] { find_recipe("qwen3_8b"); }).find("qwen3_8b_sft"), std::string::npos);
}

TEST(Recipes, IsStrongerThanHfAndWeakerThanTheRest) {
  const testing::TempDir dir;
  const std::string file = dir / "own.yaml";
  std::ofstream(file) << "optimizer:\n  lr: 2.0e-4\n  min_lr: 2.0e-5\n  adam_beta1: 0.8\n";
  const std::vector<std::string> args = {"--recipe",
                                         "tiny/llama",
                                         "--config",
                                         file,
                                         "--lr",
                                         "1e-4",
                                         "optimizer.min_lr=0",
                                         "--hf",
                                         "model",
                                         "--adam-beta1=0.85",
                                         "optimizer.adam_beta1=0.7"};
  const SourceReaders readers = {.hf =
                                     [](const std::string&) {
                                       Json model = Json::object();
                                       model["num_layers"] = 9;
                                       model["qk_layernorm"] = true;
                                       return model;
                                     },
                                 .recipe = read_recipe};
  const Resolved resolved = resolve(read_sources(parse_command_line(args), readers), kInspect);
  EXPECT_EQ(resolved.config.model.num_layers, 2);        // of the recipe, not of --hf
  EXPECT_TRUE(resolved.config.model.qk_layernorm);       // of --hf alone
  EXPECT_EQ(resolved.config.optimizer.lr, 1e-4);         // a flag over the file over the recipe
  EXPECT_EQ(resolved.config.optimizer.min_lr, 0);        // an override over the file
  EXPECT_EQ(resolved.config.optimizer.adam_beta1, 0.7);  // an override over a flag
  EXPECT_EQ(resolved.config.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(source_name(resolved.origin("optimizer.adam_beta2").source), std::string("recipe"));
  EXPECT_TRUE(resolved.origin("optimizer.adam_beta2").where.starts_with("tiny/llama:"));
}

TEST(Recipes, ShowsWhatBridgeHasBeyondTheSettings) {
  const std::string text = recipe_yaml(find_recipe("perf/llama3_70b_sft_32gpu_h100_fp8cs"));
  EXPECT_NE(text.find("# note: Bridge captures CUDA graphs of mlp"), std::string::npos) << text;
  EXPECT_NE(recipe_yaml(find_recipe("llama32_1b_peft")).find("# needs: PEFT"), std::string::npos);
}

TEST(Recipes, OfVisionHaveTheTowerOfTheirSize) {
  const Resolved small = resolved_of({"--recipe", "qwen25_vl_3b_sft"}),
                 large = resolved_of({"--recipe", "qwen25_vl_72b_sft"});
  EXPECT_EQ(small.config.model.vision_tower, VisionTowerKind::qwen2_5);
  EXPECT_EQ(small.config.model.vision_output_size, 2048);
  EXPECT_EQ(small.config.model.vision_ffn_hidden_size, 3420);
  EXPECT_EQ(large.config.model.vision_output_size, 8192);
  EXPECT_EQ(large.config.model.vision_ffn_hidden_size, 3456);
  EXPECT_EQ(resolved_of({"--recipe", "gemma3_vl_4b_sft"}).config.model.vision_tokens_per_image, 256);
}

// Each fault of a file is named with the file and the row.
TEST(RecipeFile, FaultsAreNamed) {
  Json bases = Json::object();
  for (const char* task : {"all", "pretrain", "sft", "peft", "perf", "tiny"}) bases[task] = Json::object();
  const std::string head = "architecture: LlamaForCausalLM\nsizes: {m: {hidden_size: 8}}\n";
  const auto fault = [&](const std::string& rest) {
    return error_of([&] { read_recipe_family({"own", head + rest}, bases); });
  };
  EXPECT_EQ(fault("recipes: {m_pretrain_1gpu_h100_bf16: {tq: 2}}")
                .find("recipes/own.yaml: m_pretrain_1gpu_h100_bf16: "
                      "there is no setting tq; did you mean 'tp'"),
            0u);
  EXPECT_EQ(fault("recipes: {m_pretrain_1gpu_h100_bf16: {tp: two}}"),
            "recipes/own.yaml: m_pretrain_1gpu_h100_bf16: tp is a string (expected an integer)");
  EXPECT_EQ(fault("recipes: {n_pretrain_1gpu_h100_bf16: {}}"), "recipes/own.yaml: n: there is no such size");
  EXPECT_NE(fault("recipes: {m_pretrain_h100_bf16: {}}").find("the name has another form"),
            std::string::npos);
  EXPECT_NE(fault("recipes: {m_pretrain_1gpu_h100_bf16: {recompute: some}}").find("recompute is 'some'"),
            std::string::npos);
  EXPECT_EQ(fault("further: 1"), "recipes/own.yaml: further: there is no such key");
  EXPECT_EQ(fault("recipes: [1]").find("recipes/own.yaml: "), 0u);
  EXPECT_EQ(fault("recipes: {").find("recipes/own.yaml:"), 0u);
}

}  // namespace
}  // namespace megatron
