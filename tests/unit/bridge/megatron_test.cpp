// Megatron-LM's formats there and back, and the legacy one from ranks that are laid out as our own are.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "golden/hf_models/cases.h"
#include "megatron/bridge/convert.h"
#include "megatron/bridge/megatron/args.h"
#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/models/gpt.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/models/whole_model.h"
#include "megatron/parallel/planned_group.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/bridge/legacy_file.h"
#include "unit/bridge/same_model.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::LegacyFile;
using testing::source;
using testing::TempDir;

void no_note(const std::string&) {}

Json parsed(const char* text) { return Json::parse(text); }

// Arguments as a run has them: names of argparse, null where nothing was given.
const char* const kArgs = R"({
  "num_layers": 8, "hidden_size": 16, "num_attention_heads": 4, "ffn_hidden_size": 24, "kv_channels": 4,
  "group_query_attention": true, "num_query_groups": 2, "seq_length": 8, "max_position_embeddings": 8,
  "position_embedding_type": "rope", "rotary_base": 500000, "rotary_percent": 1.0, "normalization": "RMSNorm",
  "norm_epsilon": 1e-06, "swiglu": true, "add_bias_linear": false, "untie_embeddings_and_output_weights": true,
  "padded_vocab_size": 32, "vocab_size": 30, "make_vocab_size_divisible_by": 16, "num_experts": null,
  "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_gelu_fusion": false, "bias_swiglu_fusion": true,
  "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2,
  "expert_model_parallel_size": 1, "consumed_train_samples": 640, "consumed_valid_samples": 32, "seed": 1234,
  "encoder_seq_length": 8, "encoder_num_layers": 8, "lr": 0.001, "fp8": null, "moe_layer_freq": 1})";

TEST(MegatronArgs, DescribeTheModel) {
  std::vector<std::string> notes;
  const ModelConfig model =
      model_from_args(parsed(kArgs), "file", [&](const std::string& note) { notes.push_back(note); });
  EXPECT_EQ(model.num_layers, 8);
  EXPECT_EQ(model.num_query_groups, 2);
  EXPECT_EQ(model.vocab_size, 32);
  EXPECT_EQ(model.make_vocab_size_divisible_by, 1);
  EXPECT_EQ(model.rotary_base, 500000);
  EXPECT_EQ(model.layernorm_epsilon, 1e-6);
  EXPECT_EQ(model.normalization, Normalization::rms_norm);
  EXPECT_EQ(model.position_embedding_type, PositionEmbedding::rope);
  EXPECT_EQ(model.activation_func, Activation::silu);
  EXPECT_TRUE(model.gated_linear_unit);
  EXPECT_FALSE(model.add_bias_linear);
  EXPECT_FALSE(model.share_embeddings_and_output_weights);
  EXPECT_EQ(notes.size(), 1u);  // the padded vocabulary
}

// What means something else than its name says.
TEST(MegatronArgs, MeaningDependsOnOthers) {
  Json args = parsed(kArgs);
  args["group_query_attention"] = false;
  args["num_query_groups"] = 1;  // argparse's default
  EXPECT_EQ(model_from_args(args, "file", no_note).num_query_groups, 4);
  args["swiglu"] = false;
  EXPECT_EQ(model_from_args(args, "file", no_note).activation_func, Activation::gelu);
  args["bias_gelu_fusion"] = true;
  EXPECT_EQ(model_from_args(args, "file", no_note).activation_func, Activation::gelu_tanh);
  args["num_layers"] = "many";
  EXPECT_NE(error_of([&] { model_from_args(args, "file", no_note); }).find("num_layers"), std::string::npos);
}

TEST(MegatronArgs, ThereAndBack) {
  const ModelConfig model = model_from_args(parsed(kArgs), "file", no_note);
  EXPECT_EQ(model_settings(model_from_args(args_from_model(model), "file", no_note)), model_settings(model));
}

// The same tensors, bit for bit, and the same model.
void expect_same_checkpoint(const std::string& a, const std::string& b) {
  CheckpointReader first(a), second(b);
  RankContext ctx;
  ASSERT_EQ(first.index().tensors.size(), second.index().tensors.size());
  for (const StoredTensor& tensor : first.index().tensors) {
    ASSERT_TRUE(second.index().find(tensor.name)) << tensor.name;
    const Tensor x = host_tensor(tensor.shape, tensor.dtype), y = host_tensor(tensor.shape, tensor.dtype);
    const ShardedTensor from{tensor.name, ShardSpec::whole(tensor.shape), x}, to{tensor.name, from.shard, y};
    first.load(ctx, {&from, 1});
    second.load(ctx, {&to, 1});
    EXPECT_EQ(std::memcmp(x.raw(), y.raw(), x.bytes()), 0) << tensor.name;
  }
}

TEST(MegatronExport, ThereAndBackIsExact) {
  for (const char* name : {"llama", "gpt2", "deepseek_v3", "nemotron_h", "glm4_moe", "mixtral", "gemma2"}) {
    SCOPED_TRACE(name);
    TempDir folder;
    import_model(source(name), folder / "ours");
    EXPECT_EQ(export_megatron(folder / "ours", folder / "theirs"), folder / "theirs/release");
    import_megatron(folder / "theirs", folder / "again");
    expect_same_checkpoint(folder / "ours", folder / "again");
    EXPECT_NE(error_of([&] { export_megatron(folder / "ours", folder / "theirs"); }).find("not empty"),
              std::string::npos);
  }
}

// A model whose elements are numbered, each tensor from a start of its own.
Tensor numbered(const std::string& name, const Shape& shape) {
  Tensor tensor = host_tensor(shape, DType::F32);
  const auto start = static_cast<float>(std::hash<std::string>()(name) % 1000);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = start + static_cast<float>(i) / 64;
  return tensor;
}

Tensor shard_of(const Parameter& parameter) {
  const Tensor whole = numbered(parameter.name, parameter.shard.global_shape);
  const Tensor local = host_tensor(parameter.shard.local_shape, DType::F32);
  std::memset(local.raw(), 0, local.bytes());
  for (const ShardBlock& block : parameter.shard.blocks)
    copy_host(box_of(whole, {block.global_offset, block.extent}),
              box_of(local, {block.local_offset, block.extent}));
  return local;
}

// Our name as Megatron's model has it on one rank: layers counted from the chunk's first.
std::string local_name(const std::string& name, int64_t first_layer) {
  const std::string layers = "decoder.layers.";
  if (!name.starts_with(layers)) return name;
  const size_t dot = name.find('.', layers.size());
  return layers + std::to_string(std::stoll(name.substr(layers.size(), dot - layers.size())) - first_layer) +
         name.substr(dot);
}

void write_parameter(LegacyFile& file, const Parameter& parameter, int64_t first_layer, bool grouped) {
  const std::string name = local_name(parameter.name, first_layer), stack = "mlp.experts.experts.";
  const Tensor tensor = shard_of(parameter);
  const size_t at = name.find(stack);
  if (at == std::string::npos) {
    file.pickle.text(name);
    file.tensor(tensor);
    return;
  }
  for (int64_t expert = 0; expert < tensor.size(0); ++expert) {
    const std::string rest = name.substr(at + stack.size()), number = std::to_string(expert);
    file.pickle.text(name.substr(0, at) + (grouped ? "mlp.experts." + rest + number
                                                   : "mlp.experts.local_experts." + number + "." + rest));
    file.tensor(tensor.select(0, expert));
  }
}

// What the ranks of such a run would save.
void write_legacy(const std::string& directory, const Json& args, bool grouped) {
  Config config;
  config.model = model_from_args(args, "args", no_note);
  const MegatronLayout layout = layout_from_args(args);
  const ParallelSizes sizes{.world = static_cast<int>(layout.tensor * layout.pipeline * layout.expert),
                            .tp = static_cast<int>(layout.tensor),
                            .pp = static_cast<int>(layout.pipeline),
                            .ep = static_cast<int>(layout.expert)};
  const int64_t chunk_layers = config.model.num_layers / (layout.pipeline * layout.virtual_pipeline);
  for (int rank = 0; rank < sizes.world; ++rank) {
    const ParallelContext parallel =
        ParallelContext::from_sizes(planned_world(sizes, rank, std::make_shared<TrafficLog>()), sizes);
    const int64_t tp = parallel.rank(Axis::tp), pp = parallel.rank(Axis::pp), ep = parallel.rank(Axis::ep);
    LegacyFile file;
    file.pickle.begin_dict();
    file.pickle.text("args");
    file.pickle.object("argparse", "Namespace");
    file.pickle.json(args);
    file.pickle.set_state();
    file.pickle.text("iteration");
    file.pickle.integer(20);
    for (int64_t v = 0; v < layout.virtual_pipeline; ++v) {
      const int64_t stage = v * layout.pipeline + pp, last = layout.virtual_pipeline * layout.pipeline - 1;
      GptModel model(config.model,
                     {.first_layer = stage * chunk_layers,
                      .layers = chunk_layers,
                      .embedding = stage == 0,
                      .head = stage == last},
                     model_parallel(config, parallel), DType::F32);
      file.pickle.text(layout.virtual_pipeline > 1 ? "model" + std::to_string(v) : "model");
      file.pickle.begin_dict();
      model.visit(
          [&](Parameter& parameter) { write_parameter(file, parameter, stage * chunk_layers, grouped); });
      file.pickle.text("decoder.layers.0.self_attention.linear_qkv._extra_state");
      file.pickle.none();
      file.pickle.end_dict();
    }
    file.pickle.end_dict();
    std::string name = fmt::format("mp_rank_{:02}", tp);
    if (layout.pipeline > 1) name += fmt::format("_{:03}", pp);
    if (layout.expert > 1) name += fmt::format("_{:03}", ep);
    fs::create_directories(directory + "/" + name);
    file.write(directory + "/" + name + "/model_optim_rng.pt");
  }
}

void expect_numbered(const std::string& directory, const Json& args) {
  const MegatronCheckpoint checkpoint = open_megatron(directory);
  EXPECT_EQ(checkpoint.state.iteration, 20);
  EXPECT_EQ(checkpoint.state.consumed_samples, 640);
  EXPECT_EQ(checkpoint.state.consumed_valid_samples, 32);
  RankContext ctx;
  size_t count = 0;
  whole_model(model_from_args(args, "args", no_note))->visit([&](Parameter& parameter) {
    const MegatronTensor* tensor = checkpoint.find(parameter.name);
    ASSERT_TRUE(tensor) << parameter.name;
    ASSERT_EQ(tensor->shape, parameter.shard.global_shape) << parameter.name;
    const Tensor found = host_tensor(tensor->shape, DType::F32),
                 wanted = numbered(parameter.name, tensor->shape);
    tensor->read(ctx, ShardSpec::whole(tensor->shape), found);
    EXPECT_EQ(std::memcmp(found.raw(), wanted.raw(), found.bytes()), 0) << parameter.name;
    ++count;
  });
  EXPECT_EQ(checkpoint.tensors.size(), count);
}

TEST(MegatronLegacy, TensorAndVirtualPipelineRanks) {
  TempDir dir;
  write_legacy(dir / "iter_0000020", parsed(kArgs), false);
  testing::write_text(dir / "latest_checkpointed_iteration.txt", "20");
  expect_numbered(dir.path(), parsed(kArgs));

  // The result is an ordinary checkpoint of ours.
  import_megatron(dir.path(), dir / "ours");
  const CheckpointReader reader(dir / "ours");
  EXPECT_EQ(reader.state().config.at("model").at("num_layers"), Json(8));

  fs::remove_all(dir / "iter_0000020/mp_rank_01_001");
  EXPECT_NE(error_of([&] { open_megatron(dir.path()); }).find("some ranks are missing"), std::string::npos);
}

TEST(MegatronLegacy, Experts) {
  Json args = parsed(kArgs);
  for (const auto& [key, value] : {std::pair{"num_experts", 4},
                                   {"moe_router_topk", 2},
                                   {"expert_model_parallel_size", 2},
                                   {"moe_ffn_hidden_size", 12},
                                   {"virtual_pipeline_model_parallel_size", 1},
                                   {"moe_shared_expert_intermediate_size", 8}})
    args[key] = value;
  for (bool grouped : {false, true}) {
    TempDir dir;
    write_legacy(dir.path(), args, grouped);
    expect_numbered(dir.path(), args);
  }
}

TEST(MegatronLegacy, LatentAttentionAndMamba) {
  Json latent = parsed(kArgs);
  for (const auto& [key, value] : {std::pair{"q_lora_rank", 12},
                                   {"kv_lora_rank", 8},
                                   {"qk_head_dim", 4},
                                   {"qk_pos_emb_head_dim", 4},
                                   {"v_head_dim", 4},
                                   {"num_query_groups", 4}})
    latent[key] = value;
  latent["multi_latent_attention"] = true;
  latent["group_query_attention"] = false;
  latent["qk_layernorm"] = true;
  Json hybrid = parsed(kArgs);
  for (const auto& [key, value] : {std::pair{"mamba_state_dim", 4},
                                   {"mamba_head_dim", 8},
                                   {"mamba_num_groups", 2},
                                   {"mamba_num_heads", 4},
                                   {"virtual_pipeline_model_parallel_size", 1}})
    hybrid[key] = value;
  hybrid["hybrid_layer_pattern"] = "MM*-MM*-";
  hybrid["position_embedding_type"] = "none";
  for (const Json& args : {latent, hybrid}) {
    TempDir dir;
    write_legacy(dir.path(), args, false);
    expect_numbered(dir.path(), args);
  }
}

TEST(MegatronLegacy, OldModelsGetAdvice) {
  TempDir dir;
  fs::create_directories(dir / "mp_rank_00");
  LegacyFile file;
  file.pickle.begin_dict();
  file.pickle.text("args");
  file.pickle.object("argparse", "Namespace");
  Json args = parsed(kArgs);
  for (const char* size :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"})
    args[size] = 1;
  file.pickle.json(args);
  file.pickle.set_state();
  file.pickle.text("model");
  file.pickle.json(parsed(R"({"language_model": {}})"));
  file.pickle.end_dict();
  file.write(dir / "mp_rank_00/model_optim_rng.pt");
  EXPECT_NE(error_of([&] { open_megatron(dir.path()); }).find("tools/checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace megatron
