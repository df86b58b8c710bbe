#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "golden/hf_models/cases.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/convert.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/checkpoint.h"
#include "megatron/comm/run_ranks.h"
#include "megatron/models/model.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/t5.h"
#include "megatron/models/whole_model.h"
#include "megatron/ops/rope.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/bridge/same_model.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_same_model;
using testing::source;
using testing::TempDir;

// Small models in memory where that can be: a disk that must be sure of every file is slow.
class Convert : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (fs::exists("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

std::vector<std::string> decoder_cases() {
  std::vector<std::string> names(testing::kDenseCases.begin(), testing::kDenseCases.end());
  names.insert(names.end(), testing::kMixtureCases.begin(), testing::kMixtureCases.end());
  names.insert(names.end(), testing::kHybridCases.begin(), testing::kHybridCases.end());
  return names;
}

TEST_F(Convert, ThereAndBackIsExact) {
  std::vector<std::string> names = decoder_cases();
  names.insert(names.end(), {"bert", "t5_gated", "qwen2_vl", "qwen2_5_vl", "gemma3_mm"});
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    TempDir folder;
    import_model(source(name), folder / "checkpoint", {.files = 2});
    export_model(folder / "checkpoint", folder / "hf");
    expect_same_model(source(name), folder / "hf");
  }
}

TEST_F(Convert, ShardsAndNarrowDtypesAreKept) {
  const std::string sharded = testing::golden_path("hf_models", "llama/model_bf16_sharded");
  TempDir folder;
  import_model(sharded, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  expect_same_model(sharded, folder / "hf");
}

// The bias that experts are chosen with is fp32 in any file.
TEST_F(Convert, TheBiasOfTheChoiceStaysWide) {
  TempDir folder;
  import_model(source("deepseek_v3"), folder / "checkpoint", {.dtype = DType::BF16});
  export_model(folder / "checkpoint", folder / "hf", {.dtype = DType::BF16});
  const SafetensorsDirectory out(folder / "hf"), in(source("deepseek_v3"));
  for (const std::string& name : out.names()) {
    const bool bias = name.ends_with("e_score_correction_bias");
    EXPECT_EQ(out.at(name).stored, bias ? "F32" : "BF16") << name;
    if (!bias) continue;
    const auto u = out.file_of(name).bytes(out.at(name)), v = in.file_of(name).bytes(in.at(name));
    EXPECT_TRUE(std::equal(u.begin(), u.end(), v.begin(), v.end())) << name;
  }
}

TEST_F(Convert, AnotherDtype) {
  TempDir folder;
  import_model(source("llama"), folder / "checkpoint", {.dtype = DType::BF16});
  export_model(folder / "checkpoint", folder / "hf", {.dtype = DType::F16});
  const SafetensorsDirectory out(folder / "hf");
  for (const std::string& name : out.names()) EXPECT_EQ(out.at(name).stored, "F16");
  EXPECT_EQ(Json::read(folder / "hf/config.json").at("dtype").as_string(), "float16");
}

// Ranks read their slices, train nothing, save; what goes out is what came in.
void expect_same_through_ranks(const std::string& name) {
  SCOPED_TRACE(name);
  TempDir folder;
  const AutoBridge bridge(source(name));
  Config config;
  config.model = bridge.model_config();
  const bool encodes = is_encoder_decoder(config.model);  // relative positions have no stages
  config.parallel.tensor_model_parallel_size = 2;
  config.parallel.pipeline_model_parallel_size = encodes ? 1 : 2;
  if (const int64_t layers = config.model.num_layers; layers % 2 != 0)
    config.parallel.pipeline_model_parallel_layout = fmt::format("Et*{}|t*{}L", layers / 2 + 1, layers / 2);
  if (config.model.num_moe_experts > 0) {  // whole experts, instead of parts of them, on two ranks
    config.parallel.expert_model_parallel_size = 2;
    config.parallel.expert_tensor_parallel_size = 1;
  }
  const int ranks = encodes ? 2 : 4;
  run_ranks(ranks, [&](int, const ProcessGroup& world) {
    RankContext ctx(kCpu, 1, world.rank());
    ParallelContext parallel = ParallelContext::from_sizes(world, parallel_sizes(config, ranks));
    Model model(config, parallel, DType::F32);
    const std::vector<Parameter*> parameters = model.parameters();
    for (Parameter* parameter : parameters) parameter->allocate(ctx, DType::F32);
    bridge.load(ctx, parameters);
    SaveRequest request{.root = folder / "checkpoint",
                        .state = {},
                        .tensors = checkpoint_tensors(parameters),
                        .assets = source_files(bridge.directory(), bridge.weights().files())};
    save_checkpoint(ctx, world, request);
  });
  export_model(folder / "checkpoint", folder / "hf");
  expect_same_model(source(name), folder / "hf");
}

TEST(SourceFiles, TokenizersAreKnownByTheirNames) {
  for (const char* name : {"hf/tokenizer.json", "hf/tokenizer_config.json", "hf/vocab.json", "hf/merges.txt",
                           "hf/special_tokens_map.json", "hf/spiece.model", "hf/chat_template.jinja"})
    EXPECT_TRUE(is_tokenizer_file(name)) << name;
  for (const char* name : {"hf/config.json", "hf/generation_config.json", "hf/tensors.json", "hf/LICENSE"})
    EXPECT_FALSE(is_tokenizer_file(name)) << name;
}

TEST_F(Convert, ThroughRanksOfAnyLayout) {
  for (const std::string& name : decoder_cases()) expect_same_through_ranks(name);
}
TEST_F(Convert, EncodersAndVisionThroughRanks) {
  for (const char* name : {"bert", "t5_gated", "qwen2_vl", "qwen2_5_vl", "gemma3_mm"})
    expect_same_through_ranks(name);
}

// A copy of a model whose tensors or config.json can be changed.
struct Copy {
  TempDir folder;
  std::string path = folder / "model";
  explicit Copy(const std::string& name) { fs::copy(source(name), path, fs::copy_options::recursive); }
  void rewrite(const std::function<void(std::vector<std::pair<std::string, Tensor>>&)>& change) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    {
      const SafetensorsFile file(source("llama") + "/model.safetensors");
      for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
      change(tensors);
      fs::remove(path + "/model.safetensors");
      write_safetensors(path + "/model.safetensors", tensors, {{"format", "pt"}});
    }
  }
  void set(std::string_view key, Json value) {
    Json json = Json::read(path + "/config.json");
    json[key] = std::move(value);
    fs::permissions(path + "/config.json", fs::perms::owner_all);
    std::ofstream(path + "/config.json") << json.dump();
  }
};

// MTP layers stand after the decoder's, with copies of embedding and head that are not kept.
TEST_F(Convert, MtpLayers) {
  const SafetensorsFile file(source("deepseek_v3") + "/model.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors, kept;
  for (const std::string& name : file.names()) {
    tensors.emplace_back(name, file.tensor(name));
    const std::string last = "model.layers.2.";
    if (name.starts_with(last))
      tensors.emplace_back("model.layers.3." + name.substr(last.size()), file.tensor(name));
  }
  const Tensor norm = file.tensor("model.norm.weight"), table = file.tensor("model.embed_tokens.weight");
  for (const char* name : {"enorm", "hnorm", "shared_head.norm"})
    tensors.emplace_back(fmt::format("model.layers.3.{}.weight", name), norm);
  tensors.emplace_back("model.layers.3.eh_proj.weight", table.slice(0, 0, 96).view({48, 96}));
  kept = tensors;
  tensors.emplace_back("model.layers.3.embed_tokens.weight", table);
  tensors.emplace_back("model.layers.3.shared_head.head.weight", file.tensor("lm_head.weight"));
  TempDir folder;
  for (const auto& [name, contents] : {std::pair{"model", &tensors}, {"kept", &kept}}) {
    fs::create_directories(folder / name);
    fs::copy(source("deepseek_v3") + "/config.json", folder / name);
    write_safetensors(folder / name + "/model.safetensors", *contents, {{"format", "pt"}});
  }
  EXPECT_EQ(AutoBridge(folder / "model").model_config().mtp_num_layers, 1);
  import_model(folder / "model", folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  expect_same_model(folder / "kept", folder / "hf");
}

TEST_F(Convert, WhatDoesNotFitIsListed) {
  Copy copy("llama");
  copy.rewrite([](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.first == "model.layers.1.mlp.up_proj.weight"; });
    for (auto& [name, tensor] : tensors) {
      if (name == "model.norm.weight") tensor = tensor.slice(0, 0, 40);
      if (name == "lm_head.weight") name = "lm_head.weights";
    }
  });
  const std::string error = error_of([&] { AutoBridge{copy.path}; });
  EXPECT_NE(error.find("model.layers.1.mlp.up_proj.weight: it is missing"), std::string::npos) << error;
  EXPECT_NE(error.find("model.norm.weight: the file has [40], the configuration says [48]"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("lm_head.weights: the model has no such tensor"), std::string::npos) << error;
}

TEST_F(Convert, UnknownArchitecturesAreRefusedWithTheKnownOnes) {
  Copy copy("llama");
  Json list = Json::array();
  list.push_back("LamaForCausalLM");
  copy.set("architectures", list);
  const std::string error = error_of([&] { AutoBridge{copy.path}; });
  EXPECT_NE(error.find("LamaForCausalLM"), std::string::npos);
  EXPECT_NE(error.find("LlamaForCausalLM"), std::string::npos);
}

TEST_F(Convert, AFailedExportLeavesNothing) {
  TempDir folder;
  import_model(source("llama"), folder / "checkpoint");
  fs::create_directories(folder / "other");
  std::ofstream(folder / "other/config.json") << R"({"architectures": ["GPT2LMHeadModel"]})";
  EXPECT_NE(
      error_of([&] { export_model(folder / "checkpoint", folder / "hf", {.hf_config = folder / "other"}); }),
      "no error");
  EXPECT_FALSE(fs::exists(folder / "hf"));
  EXPECT_FALSE(fs::exists(folder / "hf.partial"));
  fs::create_directories(folder / "full/x");
  EXPECT_NE(error_of([&] { export_model(folder / "checkpoint", folder / "full"); }), "no error");
  export_model(folder / "checkpoint", folder / "slash/");
  expect_same_model(source("llama"), folder / "slash");
}

// A configuration to follow brings its tokenizer along, and must describe the checkpoint's own model.
TEST_F(Convert, AConfigurationToFollow) {
  TempDir folder;
  import_model(source("llama"), folder / "ckpt");
  for (const char* name : {"same", "other"}) {
    fs::create_directories(folder / name);
    std::ofstream(folder / name + std::string("/tokenizer.json")) << name;
  }
  fs::copy(source("llama") + "/config.json", folder / "same");
  export_model(folder / "ckpt", folder / "hf", {.hf_config = folder / "same"});
  expect_same_model(source("llama"), folder / "hf");
  EXPECT_TRUE(fs::exists(folder / "hf/tokenizer.json"));
  // One without a tokenizer leaves the checkpoint's own in its place.
  fs::create_directories(folder / "bare");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(source("llama") + "/" + name, folder / "bare");
  std::ofstream(folder / "bare/tokenizer.json") << "own";
  import_model(folder / "bare", folder / "ckpt3");
  fs::remove(folder / "bare/tokenizer.json");
  export_model(folder / "ckpt3", folder / "hf3", {.hf_config = folder / "bare"});
  EXPECT_EQ(testing::read_text(folder / "hf3/tokenizer.json"), "own");
  Json json = Json::read(source("llama") + "/config.json");
  json["vocab_size"] = 200;
  json["num_hidden_layers"] = 3;
  std::ofstream(folder / "other/config.json") << json.dump();
  const std::string error =
      error_of([&] { export_model(folder / "ckpt", folder / "hf2", {.hf_config = folder / "other"}); });
  EXPECT_NE(
      error.find(
          "embedding.word_embeddings.weight: the checkpoint has [192, 48], the configuration says [200, 48]"),
      std::string::npos)
      << error;
  EXPECT_NE(error.find("decoder.layers.2.input_layernorm.weight: the checkpoint does not have it"),
            std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists(folder / "hf2"));
}

// Whatever stops a conversion, its parts go away; and what is there already stays.
TEST_F(Convert, AStoppedConversionLeavesNothing) {
  TempDir folder;
  const auto stop = [](const std::string& tensor, int64_t done, int64_t) {
    if (done > 0) fail("stopped at {}", tensor);
  };
  EXPECT_NE(error_of([&] {
              import_model(source("llama"), folder / "ckpt", {.progress = stop});
            }).find("stopped at"),
            std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder / "ckpt"));
  import_model(source("llama"), folder / "ckpt");
  EXPECT_NE(
      error_of([&] { import_model(source("qwen2"), folder / "ckpt"); }).find("holds checkpoints already"),
      std::string::npos);
  EXPECT_NE(
      error_of([&] { export_model(folder / "ckpt", folder / "hf", {.progress = stop}); }).find("stopped at"),
      std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "hf"));
  EXPECT_FALSE(fs::exists(folder / "hf.partial"));
  std::ofstream(folder / "file") << "x";
  EXPECT_NE(error_of([&] { import_model(source("llama"), folder / "file"); }).find("is a file"),
            std::string::npos);
}

TEST(HfConfig, SettingsOfATower) {
  const Json qwen = hf_model_settings(AutoBridge(source("qwen2_vl"))),
             gemma = hf_model_settings(AutoBridge(source("gemma3_mm")));
  EXPECT_EQ(qwen.at("vision_tower").as_string(), "qwen2");
  EXPECT_EQ(gemma.at("vision_tower").as_string(), "siglip");
  EXPECT_TRUE(gemma.at("vision_bidirectional").as_bool());
}

// What a training run takes from a model's files, that of its experts too.
TEST(HfConfig, SettingsOfATrainingRun) {
  const Json settings = hf_model_settings(AutoBridge(source("nemotron_h")));
  EXPECT_EQ(settings.at("hybrid_layer_pattern").as_string(), "M*EM-");
  EXPECT_EQ(settings.at("mamba_num_heads").as_int(), 6);
  EXPECT_EQ(settings.at("num_moe_experts").as_int(), 4);
  EXPECT_EQ(settings.at("moe_ffn_hidden_size").as_int(), 28);
}

TEST(HfConfig, OldLayoutOfRopeSettings) {
  for (const char* name : {"llama_rope_llama3", "llama_rope_yarn", "llama_rope_linear", "deepseek_v3_yarn",
                           "gpt_oss", "glm4_moe", "mixtral", "qwen3_moe"}) {
    Json json = Json::read(source(name) + "/config.json");
    Json old = Json::object(), scaling = Json::object();
    for (const auto& [key, value] : json.as_object())
      if (key == "rope_parameters") {
        for (const auto& [k, v] : value.as_object())
          if (k == "rope_theta")
            old["rope_theta"] = v;
          else
            scaling[k == "rope_type" ? "type" : k] = v;
        old["rope_scaling"] = scaling;
      } else {
        old[key == "dtype" ? "torch_dtype" : key] = value;
      }
    Config a, b;
    const Family& family = find_family(HfConfig(json).architecture());
    a.model = family.configure({HfConfig(json), {}});
    b.model = family.configure({HfConfig(old), {}});
    EXPECT_EQ(a.to_json(), b.to_json()) << name;
  }
}

// Scalings that look at the length of the sequence: the model turns by the frequencies that they give.
TEST(HfConfig, LongRopeAndDynamicScaling) {
  const auto cosines = [](const Json& json, int64_t length) {
    RankContext ctx;
    ModelConfig model = find_family("Phi3ForCausalLM").configure({HfConfig(json), {}});
    model.num_layers = 0;
    const GptModel gpt(model, {.first_layer = 0, .layers = 0}, {}, DType::F32);
    return ctx.to_vector<float>(gpt.sequences(ctx, 1, length).rope_cos);
  };
  const auto expected = [](const ops::RopeScaling& scaling, int64_t length) {
    RankContext ctx;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
    const auto frequencies = ops::rope_frequencies(12, 1e4, scaling, length);
    return ctx.to_vector<float>(
        ops::rope_tables(ctx, ctx.from_vector(positions, {length}), frequencies, DType::F32).cos);
  };
  Json json = Json::read(source("phi3") + "/config.json");
  json["original_max_position_embeddings"] = 32;  // of 128: stretched by 4
  json["rope_parameters"] = Json::parse(
      R"({"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1, 1, 1, 2, 2, 2],
          "long_factor": [1, 2, 3, 4, 5, 6]})");
  ops::RopeScaling scaling{.kind = ops::RopeScalingKind::LongRope, .factor = 4, .original_max_position = 32};
  scaling.short_factor = {1, 1, 1, 2, 2, 2};
  scaling.long_factor = {1, 2, 3, 4, 5, 6};
  for (int64_t length : {32, 33}) EXPECT_EQ(cosines(json, length), expected(scaling, length)) << length;

  json["rope_parameters"] = Json::parse(R"({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3})");
  scaling = {.kind = ops::RopeScalingKind::Dynamic, .factor = 3, .max_position = 128};
  for (int64_t length : {64, 160}) EXPECT_EQ(cosines(json, length), expected(scaling, length)) << length;
}

}  // namespace
}  // namespace megatron
