// Files that say the same as the golden ones in another way, and models whose layers differ.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/convert.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/models/gpt.h"
#include "megatron/models/whole_model.h"
#include "support/error_of.h"
#include "support/temp_dir.h"
#include "unit/bridge/same_model.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::expect_same_model;
using testing::source;
using testing::TempDir;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

// A golden model with other tensors and another configuration.
class Changed {
 public:
  explicit Changed(const std::string& name) : json(Json::read(source(name) + "/config.json")) {
    file_ = std::make_unique<SafetensorsFile>(source(name) + "/model.safetensors");
    for (const std::string& tensor : file_->names()) tensors.emplace_back(tensor, file_->tensor(tensor));
  }
  // Names that begin or end with `usual`.
  void rename(const std::string& usual, const std::string& other) {
    for (auto& [name, tensor] : tensors)
      if (name.starts_with(usual))
        name = other + name.substr(usual.size());
      else if (name.ends_with(usual))
        name = name.substr(0, name.size() - usual.size()) + other;
  }
  Tensor& at(const std::string& name) {
    for (auto& [own, tensor] : tensors)
      if (own == name) return tensor;
    fail("there is no tensor {}", name);
  }
  bool has(const std::string& name) const {
    return std::ranges::any_of(tensors, [&](const auto& tensor) { return tensor.first == name; });
  }
  void drop(const std::string& begin) {
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.first.starts_with(begin); });
  }
  std::string write(const std::string& path) const {
    fs::create_directories(path);
    std::ofstream(path + "/config.json") << json.dump();
    write_safetensors(path + "/model.safetensors", tensors, {{"format", "pt"}});
    return path;
  }

  Json json;
  Tensors tensors;

 private:
  std::unique_ptr<SafetensorsFile> file_;
};

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = host_tensor(tensor.shape(), tensor.dtype());
  std::memcpy(copy.raw(), tensor.raw(), tensor.bytes());
  return copy;
}

Tensor zeros_like(const Tensor& tensor) {
  Tensor zeros = host_tensor(tensor.shape(), tensor.dtype());
  std::memset(zeros.raw(), 0, zeros.bytes());
  return zeros;
}

using Values = std::map<std::string, std::vector<float>>;
Values values_of(const std::string& directory) {
  const AutoBridge bridge(directory);
  RankContext ctx;
  Values values;
  whole_model(bridge.model_config(), bridge.vision_config())->visit([&](Parameter& parameter) {
    Tensor value = ctx.empty(parameter.shard.global_shape, DType::F32);
    bridge.read(ctx, parameter.name, ShardSpec::whole(parameter.shard.global_shape), value);
    values[parameter.name] = ctx.to_vector<float>(value);
  });
  return values;
}

std::vector<float> logits_of(const std::string& directory) {
  const AutoBridge bridge(directory);
  RankContext ctx;
  GptModel model(bridge.model_config(), {.first_layer = 0, .layers = bridge.model_config().num_layers}, {},
                 DType::F32);
  const std::vector<Parameter*> parameters = model.parameters();
  for (Parameter* parameter : parameters) parameter->allocate(ctx, DType::F32);
  bridge.load(ctx, parameters);
  MicroBatch micro{.ids = ctx.from_vector(std::vector<int64_t>{3, 1, 4, 1, 5, 9, 2, 6}, {8})};
  micro.seq = model.sequences(ctx, 1, 8);
  return ctx.to_vector<float>(model.logits(ctx, model.run_stage(ctx, {}, micro)[0]));
}

// It is read as the golden model is, and goes out as it came in.
void expect_read_as(const std::string& name, const Changed& changed, const std::vector<std::string>& unused) {
  SCOPED_TRACE(name);
  TempDir folder;
  const std::string other = changed.write(folder / "other");
  EXPECT_EQ(values_of(other), values_of(source(name)));
  EXPECT_EQ(AutoBridge(other).left_out(), unused);
  import_model(other, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  Changed kept(name);
  kept.json = changed.json;
  kept.tensors = changed.tensors;
  for (const std::string& tensor : unused) kept.drop(tensor);
  expect_same_model(kept.write(folder / "kept"), folder / "hf");
}

// Keys of config.json that change a model's arithmetic act or are refused by name.
TEST(Variants, KeysThatChangeArithmetic) {
  const auto error = [](const char* name, const char* key, const Json& value) {
    Changed changed(name);
    changed.json[key] = value;
    TempDir folder;
    const std::string directory = changed.write(folder / "model");
    try {
      AutoBridge bridge(directory);
    } catch (const ConfigError& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  for (const auto& [name, key, usual, other] :
       {std::tuple<const char*, const char*, Json, Json>{"gpt2", "scale_attn_weights", true, false},
        {"gpt2", "scale_attn_by_inverse_layer_idx", false, true},
        {"gemma3_text", "use_bidirectional_attention", false, true},
        {"bert", "is_decoder", false, true}}) {
    EXPECT_EQ(error(name, key, usual), "") << key;
    EXPECT_NE(error(name, key, other).find(key), std::string::npos) << error(name, key, other);
  }
  EXPECT_NE(error("deepseek_v3", "num_experts_per_tok", 1).find("norm_topk_prob"), std::string::npos);
  Changed oss("gpt_oss");
  oss.json["swiglu_limit"] = 3.5;
  TempDir folder;
  EXPECT_EQ(AutoBridge(oss.write(folder / "model")).model_config().activation_func_clamp_value, 3.5);
}

std::string refusal_of(const Changed& changed) {
  TempDir folder;
  const std::string directory = changed.write(folder / "model");
  try {
    AutoBridge bridge(directory);
  } catch (const ConfigError& refused) {
    return refused.what();
  }
  return "";
}

// No key that a golden model has is unknown; one that nobody has heard of is named.
TEST(Variants, UnknownKeysAreNoted) {
  for (const char* name : {"bert", "deepseek_v3", "gemma3_text", "glm4_moe", "gpt2", "gpt_oss",
                           "llama_rope_llama3", "mamba2", "ministral3", "mixtral", "nemotron_h", "olmo2",
                           "olmoe", "phi3", "qwen2_5_vl", "qwen2_moe", "qwen3_next", "t5_gated"})
    for (const std::string& note : AutoBridge(source(name)).notes())
      EXPECT_EQ(note.find("config.json"), std::string::npos) << note;
  Changed llama("llama");
  llama.json["attention_temperature"] = 2.5;
  TempDir folder;
  const std::vector<std::string> notes = AutoBridge(llama.write(folder / "model")).notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("config.json: attention_temperature is not known here and has no effect"),
            std::string::npos)
      << notes[0];
}

TEST(Variants, AHeadThatIsNotTheTiedEmbeddingIsRefused) {
  Changed tied("llama_tied");
  tied.tensors.emplace_back("lm_head.weight", copy_of(tied.at("model.embed_tokens.weight")));
  EXPECT_EQ(refusal_of(tied), "");
  tied.tensors.back().second.data<float>()[3] += 1;
  EXPECT_NE(refusal_of(tied).find("set tie_word_embeddings to false"), std::string::npos) << refusal_of(tied);
}

TEST(Variants, ValuesBeyondFp16AreRefused) {
  Changed large("llama");
  Tensor& weight = large.at("model.layers.0.self_attn.q_proj.weight");
  weight = copy_of(weight);
  weight.data<float>()[5] = 70000;
  TempDir folder;
  const std::string directory = large.write(folder / "model");
  try {
    import_model(directory, folder / "checkpoint", {.dtype = DType::F16});
    ADD_FAILURE() << "70000 became an infinity";
  } catch (const ConfigError& refused) {
    EXPECT_NE(std::string(refused.what()).find("q_proj.weight: 70000 does not fit into fp16"),
              std::string::npos)
        << refused.what();
  }
}

// Query, key and value become one tensor: of a dtype that holds what each of them holds.
TEST(Variants, ProjectionsOfSeveralDtypes) {
  Changed mixed("llama");
  const auto with = [&](const char* name, DType dtype, double value) {
    Tensor& weight = mixed.at(std::string("model.layers.0.self_attn.") + name + ".weight");
    RankContext ctx;
    Tensor narrow = host_tensor(weight.shape(), dtype);
    ctx.kernels->copy(ctx.kernel_context(), {weight, narrow});
    ctx.kernels->fill(ctx.kernel_context(), {narrow.slice(0, 0, 1), value});
    weight = narrow;
  };
  with("q_proj", DType::F16, 60000);
  with("k_proj", DType::BF16, 0x1p100);
  TempDir folder;
  const std::string directory = mixed.write(folder / "model");
  import_model(directory, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  EXPECT_EQ(values_of(folder / "hf"), values_of(directory));
  for (const auto& [name, values] : values_of(folder / "hf"))
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
}

TEST(Variants, OneCauseInPlaceOfAListOfTensors) {
  Changed layers("llama");
  layers.json["num_hidden_layers"] = layers.json.at("num_hidden_layers").as_int() + 1;
  EXPECT_NE(refusal_of(layers).find("layers, the files hold"), std::string::npos) << refusal_of(layers);
  Changed experts("mixtral");
  experts.json["num_local_experts"] = 2;
  EXPECT_NE(refusal_of(experts).find("config.json says 2 experts, the files hold"), std::string::npos)
      << refusal_of(experts);
}

// A LlamaModel has the same layers under shorter names, and its embedding as the head.
TEST(Variants, BaseModels) {
  Changed base("llama_tied");
  base.json["architectures"] = Json::array();
  base.json["architectures"].push_back("LlamaModel");
  base.rename("model.", "");
  expect_read_as("llama_tied", base, {});
  base.json["tie_word_embeddings"] = false;
  EXPECT_NE(refusal_of(base).find("LlamaModel has no head"), std::string::npos) << refusal_of(base);
}

TEST(Variants, NamesAsOtherToolsWriteThem) {
  Changed gpt2("gpt2");
  gpt2.rename("transformer.", "");
  gpt2.tensors.emplace_back("h.0.attn.bias", gpt2.at("ln_f.bias"));
  expect_read_as("gpt2", gpt2, {"h.0.attn.bias"});

  Changed bert("bert");
  bert.rename(".LayerNorm.weight", ".LayerNorm.gamma");
  bert.rename(".LayerNorm.bias", ".LayerNorm.beta");
  bert.tensors.emplace_back("bert.pooler.dense.bias", bert.at("bert.embeddings.LayerNorm.beta"));
  expect_read_as("bert", bert, {"bert.pooler.dense.bias"});

  Changed gemma("gemma3_mm");
  gemma.rename("vision_tower.", "vision_tower.vision_model.");
  expect_read_as("gemma3_mm", gemma, {});
  gemma.rename("vision_tower.", "model.vision_tower.");
  gemma.rename("language_model.model.", "model.language_model.");
  gemma.rename("multi_modal_projector.", "model.multi_modal_projector.");
  expect_read_as("gemma3_mm", gemma, {});

  for (const char* name : {"qwen2_vl", "qwen2_5_vl"}) {
    Changed qwen(name);
    qwen.rename("model.", "model.language_model.");
    qwen.rename("visual.", "model.visual.");
    expect_read_as(name, qwen, {});
  }
}

// All experts of a layer in one tensor, gate before up.
TEST(Variants, StackedExperts) {
  for (const auto& [name, begin, gate, up, down] :
       {std::tuple{"qwen3_moe", "mlp", "gate_proj", "up_proj", "down_proj"},
        {"mixtral", "block_sparse_moe", "w1", "w3", "w2"}}) {
    Changed changed(name);
    const int64_t layers = changed.json.at("num_hidden_layers").as_int();
    const Json* count = changed.json.find("num_experts");
    const int64_t experts = (count ? *count : changed.json.at("num_local_experts")).as_int();
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string old = fmt::format("model.layers.{}.{}.", layer, begin);
      if (!changed.has(old + "gate.weight")) continue;
      const auto weight = [&](int64_t expert, const char* part) {
        return changed.at(fmt::format("{}experts.{}.{}.weight", old, expert, part));
      };
      const Shape in = weight(0, gate).shape(), out = weight(0, down).shape();
      Tensor both = host_tensor({experts, 2 * in[0], in[1]}, DType::F32),
             second = host_tensor({experts, out[0], out[1]}, DType::F32);
      for (int64_t e = 0; e < experts; ++e) {
        const Tensor w1 = weight(e, gate), w3 = weight(e, up), w2 = weight(e, down);
        std::memcpy(both.select(0, e).raw(), w1.raw(), w1.bytes());
        std::memcpy(both.select(0, e).slice(0, in[0], 2 * in[0]).raw(), w3.raw(), w3.bytes());
        std::memcpy(second.select(0, e).raw(), w2.raw(), w2.bytes());
      }
      changed.drop(old + "experts.");
      changed.rename(old + "gate.weight", fmt::format("model.layers.{}.mlp.gate.weight", layer));
      changed.tensors.emplace_back(fmt::format("model.layers.{}.mlp.experts.gate_up_proj", layer), both);
      changed.tensors.emplace_back(fmt::format("model.layers.{}.mlp.experts.down_proj", layer), second);
    }
    expect_read_as(name, changed, {});
  }
}

// Qwen's MTP layer has names of its own; it is of the kind of the last layer, here full attention.
TEST(Variants, MtpLayerApart) {
  for (const char* name : {"qwen3_next", "qwen3"}) {
    SCOPED_TRACE(name);
    Changed changed(name);
    if (std::string(name) == "qwen3_next") {  // up to its layer of full attention
      changed.json["num_hidden_layers"] = 2;
      changed.json["layer_types"] = Json::parse(R"(["linear_attention", "full_attention"])");
      changed.drop("model.layers.2.");
    }
    const int64_t attention = changed.json.at("num_hidden_layers").as_int() - 1;
    const std::string last = fmt::format("model.layers.{}.", attention);
    const Tensors all = changed.tensors;
    for (const auto& [tensor, value] : all)
      if (tensor.starts_with(last))
        changed.tensors.emplace_back("mtp.layers.0." + tensor.substr(last.size()), value);
    const int64_t hidden = changed.json.at("hidden_size").as_int();
    const Tensor norm = changed.at("model.norm.weight"), table = changed.at("model.embed_tokens.weight");
    for (const char* part : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      changed.tensors.emplace_back(fmt::format("mtp.{}.weight", part), norm);
    changed.tensors.emplace_back("mtp.fc.weight", table.slice(0, 0, 2 * hidden).view({hidden, 2 * hidden}));
    TempDir folder;
    const std::string path = changed.write(folder / "model");
    EXPECT_EQ(AutoBridge(path).model_config().mtp_num_layers, 1);
    const Values values = values_of(path);
    EXPECT_EQ(values.at("mtp.layers.0.mtp_model_layer.self_attention.linear_qkv.weight"),
              values.at(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", attention)));
    import_model(path, folder / "checkpoint");
    export_model(folder / "checkpoint", folder / "hf");
    expect_same_model(path, folder / "hf");
  }
}

Json block(const char* attention, const char* mlp) {
  Json own = Json::object();
  own["attention"] = Json::parse(attention);
  own["ffn"] = Json::parse(mlp);
  return own;
}

// Llama-Nemotron: parts of layers are missing or narrower. A part that adds zeros is as good as none, so a
// Llama with such parts has the same logits.
TEST(Variants, LayersThatDiffer) {
  Changed pruned("llama"), zeroed("llama");
  ASSERT_EQ(pruned.json.at("num_hidden_layers").as_int(), 2);
  const int64_t width = pruned.json.at("intermediate_size").as_int(), kept = width / 2;
  pruned.json["architectures"] = Json::parse(R"(["DeciLMForCausalLM"])");
  pruned.json["intermediate_size"] = nullptr;
  pruned.json["num_key_value_heads"] = nullptr;
  Json blocks = Json::array();
  blocks.push_back(block(R"({"no_op": true, "n_heads_in_group": null, "window_length": null})",
                         fmt::format(R"({{"no_op": false, "intermediate_size": {}}})", kept).c_str()));
  blocks.push_back(
      block(R"({"no_op": false, "n_heads_in_group": 2})", R"({"no_op": true, "ffn_mult": null})"));
  pruned.json["block_configs"] = blocks;
  for (const char* name : {"self_attn.", "input_layernorm."})
    pruned.drop(std::string("model.layers.0.") + name);
  for (const char* name : {"mlp.", "post_attention_layernorm."})
    pruned.drop(std::string("model.layers.1.") + name);
  for (const char* name : {"gate_proj", "up_proj"}) {
    Tensor& weight = pruned.at(fmt::format("model.layers.0.mlp.{}.weight", name));
    weight = copy_of(weight.slice(0, 0, kept));
  }
  Tensor& down = pruned.at("model.layers.0.mlp.down_proj.weight");
  Tensor narrow = host_tensor({down.size(0), kept}, DType::F32),
         &full = zeroed.at("model.layers.0.mlp.down_proj.weight");
  full = copy_of(full);
  for (int64_t row = 0; row < down.size(0); ++row) {
    std::memcpy(narrow.select(0, row).raw(), down.select(0, row).raw(),
                static_cast<size_t>(kept) * sizeof(float));
    std::memset(full.select(0, row).slice(0, kept, width).raw(), 0,
                static_cast<size_t>(width - kept) * sizeof(float));
  }
  down = narrow;
  for (const char* name : {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"})
    zeroed.at(name) = zeros_like(zeroed.at(name));

  TempDir folder;
  const std::string path = pruned.write(folder / "pruned");
  const std::vector<float> found = logits_of(path), wanted = logits_of(zeroed.write(folder / "zeroed"));
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 2e-6) << i;
  import_model(path, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  expect_same_model(path, folder / "hf");

  blocks[0]["attention"]["replace_with_linear"] = true;
  pruned.json["block_configs"] = blocks;
  const std::string error = testing::error_of([&] { AutoBridge(pruned.write(folder / "linear")); });
  EXPECT_NE(error.find("replace_with_linear is not built"), std::string::npos) << error;
}

// A configuration whose values make no sense is refused under their names, before any tensor is looked at.
TEST(Variants, ValuesThatMakeNoSense) {
  struct Wrong {
    const char *model, *key, *value;
  };
  for (const Wrong& wrong : std::initializer_list<Wrong>{
           {"llama", "hidden_size", "\"wide\""},
           {"llama", "hidden_size", "64.5"},
           {"llama", "hidden_size", "-4"},
           {"llama", "num_attention_heads", "0"},
           {"llama", "num_hidden_layers", "1000000000000"},
           {"llama", "vocab_size", "-4"},
           {"llama", "tie_word_embeddings", "\"yes\""},
           {"llama", "rms_norm_eps", "[]"},
           {"llama", "rope_parameters", "\"llama3\""},
           {"llama", "architectures", "[3]"},
           {"qwen3_swa", "layer_types", "[\"sliding_attention\"]"},
           {"qwen3_moe", "mlp_only_layers", "[\"one\"]"},
           {"phi3", "rope_parameters",
            R"({"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1], "long_factor": [1]})"},
           {"mamba2", "num_hidden_layers", "1000000000000"}}) {
    SCOPED_TRACE(fmt::format("{}: {} = {}", wrong.model, wrong.key, wrong.value));
    Changed changed(wrong.model);
    changed.json[wrong.key] = Json::parse(wrong.value);
    TempDir folder;
    const std::string path = changed.write(folder / "model");
    try {
      AutoBridge bridge(path);
      ADD_FAILURE() << "it was accepted";
    } catch (const ConfigError& error) {
      const std::string key = std::string(wrong.model) == "phi3"            ? "short_factor"
                              : std::string(wrong.key) == "mlp_only_layers" ? "config.json"
                                                                            : wrong.key;
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

// Whatever describes a model goes with it; weights of other formats stay behind.
TEST(Variants, FilesThatComeAlong) {
  TempDir folder;
  const std::string path = Changed("llama").write(folder / "model");
  const std::vector<std::string> kept = {"LICENSE",
                                         "chat_template.jinja",
                                         "generation_config.json",
                                         "merges.txt",
                                         "modeling_x.py",
                                         "preprocessor_config.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer.model.v3",
                                         "tokenizer_config.json"};
  for (const std::string& name : kept) std::ofstream(path + "/" + name) << name;
  for (const char* name : {"pytorch_model.bin", ".gitattributes", "model.gguf"})
    std::ofstream(path + "/" + name) << name;
  import_model(path, folder / "checkpoint");
  export_model(folder / "checkpoint", folder / "hf");
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "hf"))
    found.push_back(entry.path().filename().string());
  std::vector<std::string> wanted = kept;
  wanted.insert(wanted.end(), {"config.json", "model.safetensors"});
  std::sort(found.begin(), found.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(found, wanted);
}

}  // namespace
}  // namespace megatron
