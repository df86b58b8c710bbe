#include "megatron/config/resolve/resolve.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/value.h"

namespace megatron {
namespace {

Resolved resolve_words(std::vector<std::string> words,
                       ResolveOptions options = {.purpose = Purpose::inspect, .allow_unavailable = true}) {
  return resolve(read_sources(parse_command_line(words)), options);
}

TEST(Resolve, PlainValuesForTheRestOfTheProgram) {
  const Config config = resolve_words({"--num-layers", "2", "--hidden-size", "64", "--num-attention-heads",
                                       "4", "--normalization", "RMSNorm", "--swiglu", "--bf16"})
                            .config;
  EXPECT_EQ(config.model.num_layers, 2);
  EXPECT_EQ(config.model.kv_channels, 16);
  EXPECT_EQ(config.model.normalization, Normalization::rms_norm);
  EXPECT_EQ(config.model.activation_func, Activation::silu);
  EXPECT_TRUE(config.precision.bf16);
  EXPECT_EQ(config.precision.params_dtype, "bf16");
  EXPECT_STREQ(name_of(config.model.normalization), "RMSNorm");
}

TEST(Resolve, JsonHoldsEverySettingOnce) {
  const Resolved resolved = resolve_words({"--num-layers", "2"});
  const Json json = resolved.to_json();
  size_t count = 0;
  for (const auto& [section, values] : json.at("config").as_object()) count += values.size();
  EXPECT_EQ(count, Catalog::all().entries().size());
  EXPECT_EQ(json.at("config").at("model").at("num_layers").as_int(), 2);
  EXPECT_EQ(json.at("origins").at("model.num_layers").as_string(), "flag --num-layers 2");
  EXPECT_EQ(Json::parse(json.dump()), json);
}

// What is shown can be given back: the JSON of a configuration is a valid file for the same configuration.
TEST(Resolve, ShownConfigurationCanBeReadBack) {
  const std::vector<std::string> words = {"--num-layers",
                                          "4",
                                          "--hidden-size",
                                          "64",
                                          "--num-attention-heads",
                                          "4",
                                          "--bf16",
                                          "--swiglu",
                                          "--num-experts",
                                          "4",
                                          "--moe-layer-freq",
                                          "[0,1,1,1]",
                                          "--window-size",
                                          "16,0",
                                          "--lr",
                                          "1e-4",
                                          "--ranks",
                                          "2",
                                          "--micro-batch-size",
                                          "2",
                                          "--seq-length",
                                          "32"};
  const Config first = resolve_words(words).config;
  Json given = first.to_json();
  given["scheduler"]["lr_decay_iters"] = nullptr;
  // Values that stand for "not set" are written as they are; they are not given.
  for (auto& [section, values] : given.as_object())
    std::erase_if(values.as_object(),
                  [](const auto& member) { return member.second == Json(0) || member.second.is_null(); });
  Sources sources;
  sources.file = ConfigText{"shown.yaml", given.dump(2)};
  const Config second = resolve(sources, {.purpose = Purpose::inspect, .allow_unavailable = true}).config;
  EXPECT_EQ(first.to_json(), second.to_json());
}

TEST(Resolve, ReadsAFile) {
  const std::string path = testing::TempDir() + "megatron_config_test.yaml";
  std::ofstream(path) << "model:\n  num_layers: 3\n";
  const Resolved resolved = resolve_words({"--config", path});
  EXPECT_EQ(resolved.config.model.num_layers, 3);
  EXPECT_EQ(resolved.origin("model.num_layers").where, path + ":2");
  std::filesystem::remove(path);
}

TEST(Resolve, MissingFilesAndReadersAreProblems) {
  try {
    resolve_words({"--config", "/nonexistent.yaml", "--hf", "dir", "--recipe", "r"});
    FAIL();
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.exit_code(), 1);
    ASSERT_EQ(refused.problems().size(), 3u);
    EXPECT_EQ(refused.problems()[2].text(),
              "--config /nonexistent.yaml: cannot open /nonexistent.yaml: No such file or directory");
    EXPECT_NE(std::string(refused.what()).find("the configuration was refused, 3 problems:\n  --hf dir: "),
              std::string::npos);
  }
}

TEST(Resolve, ExitCodesTellUsageFromRefusal) {
  const auto code = [](std::vector<std::string> words) {
    try {
      resolve_words(std::move(words));
    } catch (const Error& error) {
      return error.exit_code();
    }
    return 0;
  };
  EXPECT_EQ(code({"--num-layers", "2"}), 0);
  EXPECT_EQ(code({"--num-layrs", "2"}), 2);
  EXPECT_EQ(code({"--num-layers"}), 2);
  EXPECT_EQ(code({"--num-layers", "x"}), 1);
  EXPECT_EQ(code({"--num-layrs", "2", "--num-layers", "x"}), 1);
  EXPECT_EQ(code({"model.num_layrs=2"}), 1);
}

TEST(Resolve, ReadersOfOtherLayers) {
  SourceReaders readers;
  readers.hf = [](const std::string& dir) {
    Json fields;
    fields["num_layers"] = dir == "a" ? 5 : 6;
    return fields;
  };
  readers.recipe = [](const std::string& name) { return ConfigText{name, "model: {hidden_size: 8}"}; };
  const std::vector<std::string> words = {"--hf", "a", "--recipe", "b"};
  const Resolved resolved = resolve(read_sources(parse_command_line(words), readers),
                                    {.purpose = Purpose::inspect, .allow_unavailable = true});
  EXPECT_EQ(resolved.config.model.num_layers, 5);
  EXPECT_EQ(resolved.config.model.hidden_size, 8);
}

// The one that will be loaded: of the step that is named, else the other run's where there is none yet.
TEST(Resolve, WhichCheckpointIsAsked) {
  SourceReaders readers;
  readers.checkpoint = [](const std::string& dir, std::optional<int64_t> step) {
    if (dir == "none") return Json();
    Json fields;
    fields["num_layers"] = dir == "a" ? step.value_or(50) : 60;
    return fields;
  };
  readers.checkpoint_layout = [](const std::string& dir, std::optional<int64_t> step) {
    Json fields;
    fields["tensor_model_parallel_size"] = dir == "a" ? step.value_or(5) : 6;
    return fields;
  };
  const auto model = [&](std::vector<std::string> words) {
    for (const char* word :
         {"--num-layers", "1", "--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"})
      words.emplace_back(word);
    const Config config = resolve(read_sources(parse_command_line(words), readers),
                                  {.purpose = Purpose::inspect, .allow_unavailable = true})
                              .config;
    return std::pair(config.model.num_layers, config.parallel.tensor_model_parallel_size);
  };
  EXPECT_EQ(model({"--load", "a"}), std::pair(int64_t{50}, int64_t{5}));
  EXPECT_EQ(model({"--load", "a", "--ckpt-step", "3"}), std::pair(int64_t{3}, int64_t{3}));
  EXPECT_EQ(model({"--load", "a", "--pretrained-checkpoint", "b"}), std::pair(int64_t{50}, int64_t{5}));
  EXPECT_EQ(model({"--load", "none", "--pretrained-checkpoint", "b"}), std::pair(int64_t{60}, int64_t{6}));
  EXPECT_EQ(model({"--pretrained-checkpoint", "b"}), std::pair(int64_t{60}, int64_t{6}));
}

// A run of experts that were made of a dense model goes on with them.
TEST(Resolve, UpcyclingIsNoMatterOfTheCheckpoint) {
  Sources sources = read_sources(parse_command_line(std::vector<std::string>{"--num-layers", "2"}));
  sources.checkpoint["num_layers"] = 2;
  sources.checkpoint["num_moe_experts"] = 4;
  sources.checkpoint["moe_use_upcycling"] = true;
  sources.checkpoint["moe_upcycling_granularity"] = 2;
  const ModelConfig model =
      resolve(sources, {.purpose = Purpose::inspect, .allow_unavailable = true}).config.model;
  EXPECT_EQ(model.num_moe_experts, 4);
  EXPECT_FALSE(model.moe_use_upcycling);
  EXPECT_EQ(model.moe_upcycling_granularity, 1);
}

TEST(Resolve, AFeatureThatIsNotBuiltIsRefused) {
  // Whichever features come to act, this holds for the rest of the table: found through the table itself.
  try {
    resolve_words({"--peft", "lora"}, {.purpose = Purpose::inspect});
    SUCCEED();
  } catch (const Refused& refused) {
    ASSERT_EQ(refused.problems().size(), 1u);
    EXPECT_EQ(refused.problems()[0].text(),
              "peft.scheme = lora (--peft lora): not available yet in this build: adapters; leave it out");
  }
  EXPECT_NO_THROW(
      resolve_words({"--fp8-multi-head-attention=false"}, {.purpose = Purpose::inspect}));  // its default
}

TEST(Resolve, CommandFlagsAreKeptApart) {
  const CommandFlag own[] = {{"--prompt", 1, ""}, {"--json", 0, ""}, {"--ids", -1, ""}};
  const std::vector<std::string> words = {"show", "--prompt",     "hello there", "--json", "--ids", "1",
                                          "2",    "--num-layers", "2",           "--",     "--lr",  "x"};
  const CommandLine line = parse_command_line(words, own);
  EXPECT_EQ(line.get("--prompt"), "hello there");
  EXPECT_TRUE(line.has("--json"));
  EXPECT_EQ(line.own.at("--ids"), (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(line.sources.flags.size(), 1u);
  EXPECT_EQ(line.words, (std::vector<std::string>{"show", "--lr", "x"}));
  EXPECT_EQ(line.get("--nothing", "other"), "other");
}

TEST(Resolve, DivisorsInAdvice) {
  EXPECT_EQ(common_divisors(std::array<int64_t, 1>{12}), "1, 2, 3, 4, 6 or 12");
  EXPECT_EQ(common_divisors(std::array<int64_t, 2>{12, 8}), "1, 2 or 4");
  EXPECT_EQ(common_divisors(std::array<int64_t, 1>{1}), "1");
}

TEST(Value, Shown) {
  EXPECT_EQ(show_value(Json()), "none");
  EXPECT_EQ(show_value(Json(3e-4)), "0.0003");
  EXPECT_EQ(show_value(Json::parse("[1,\"a\",[true]]")), "[1, a, [true]]");
}

}  // namespace
}  // namespace megatron
