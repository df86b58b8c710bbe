#include "megatron/config/resolve/resolve.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/counted.h"
#include "megatron/base/text_file.h"
#include "megatron/config/resolve/derive.h"
#include "megatron/config/rules/rules.h"
#include "megatron/config/schema/value.h"
#include "megatron/config/sources/merge.h"
#include "megatron/config/sources/string_list.h"

namespace megatron {
namespace {

// Processes x ranks where the launch is known, else what the user states.
void find_world(ConfigBuilder& builder, const Sources& sources) {
  const RunConfig& run = builder.config.run;
  if (run.world_size > 0) {
    builder.world_size = run.world_size;
    if (const int64_t started = sources.processes.value_or(0) * run.ranks;
        started > 0 && started != run.world_size)
      builder.reject("run.world_size",
                     fmt::format("the job has {} ({} x --ranks {})", counted(started, "rank"),
                                 counted(*sources.processes, "process"), run.ranks),
                     "leave it out, or start as many");
  } else if (sources.processes || builder.given("run.ranks")) {
    builder.world_size = sources.processes.value_or(1) * run.ranks;
    builder.derive("run.world_size", *builder.world_size, "processes x ranks");
  }
  const InProcessRestartConfig& restart = builder.config.inprocess_restart;
  if (!restart.enabled || restart.active_world_size == 0 || !builder.world_size) return;
  if (restart.active_world_size > *builder.world_size || restart.active_world_size % run.ranks != 0)
    return builder.reject(
        "inprocess_restart.active_world_size",
        fmt::format("the job has {}, {} in each process", counted(*builder.world_size, "rank"), run.ranks),
        fmt::format("use {}, or leave it out", *builder.world_size));
  builder.world_size = restart.active_world_size;  // the others wait in reserve
}

// Rank i is on GPU i mod n, so that fewer ranks than GPUs leave some unused.
void find_gpus(ConfigBuilder& builder, const ResolveOptions& options) {
  if (!options.gpus || builder.config.run.device == DeviceChoice::cpu) return;
  builder.gpus = options.gpus();
  if (builder.world_size && *builder.world_size < static_cast<int64_t>(builder.gpus.size()))
    builder.gpus.resize(static_cast<size_t>(*builder.world_size));
}

// Each kind once.
std::vector<GpuFacts> kinds_of_gpus(const ConfigBuilder& builder) {
  if (!builder.on_gpus()) return {};
  if (builder.gpus.empty()) return {GpuFacts{}};
  std::vector<GpuFacts> kinds;
  for (const GpuFacts& gpu : builder.gpus)
    if (std::find(kinds.begin(), kinds.end(), gpu) == kinds.end()) kinds.push_back(gpu);
  return kinds;
}

// Without a type, the files say which it is; with --hf alone, the model's own tokenizer is meant.
void find_tokenizer(ConfigBuilder& builder, const Sources& sources) {
  const TokenizerConfig& t = builder.config.tokenizer;
  const auto derive = [&](const char* type, const std::string& why) {
    builder.derive("tokenizer.tokenizer_type", type, why);
  };
  // Tokens of images are a model's own; what is left is a tokenizer of text.
  if (t.tokenizer_type == TokenizerKind::null_multimodal)
    return derive("NullTokenizer", "NullMultimodalTokenizer");
  if (t.tokenizer_type == TokenizerKind::multimodal)
    return derive("HuggingFaceTokenizer", "MultimodalTokenizer");
  if (t.tokenizer_type != TokenizerKind::none) return;
  if (!t.merge_file.empty() || t.vocab_file.ends_with(".json"))
    return derive("GPT2BPETokenizer", t.merge_file.empty() ? "vocab_file" : "merge_file");
  if (!t.vocab_file.empty()) return derive("BertWordPieceLowerCase", "vocab_file");
  const std::string& model = t.tokenizer_model;
  if (model.ends_with(".model")) return derive("GPTSentencePieceTokenizer", "tokenizer_model");
  if (model.ends_with(".tiktoken")) return derive("TikTokenizer", "tokenizer_model");
  if (!model.empty()) return derive("HuggingFaceTokenizer", "tokenizer_model");
  if (sources.hf_origin.empty()) return;
  constexpr std::pair<const char*, const char*> kFiles[] = {{"tokenizer.json", "HuggingFaceTokenizer"},
                                                            {"tokenizer.model", "Llama2Tokenizer"}};
  for (const auto& [file, type] : kFiles) {
    std::error_code absent;
    if (!std::filesystem::is_regular_file(std::filesystem::path(sources.hf_origin) / file, absent)) continue;
    derive(type, "--hf");
    return builder.derive("tokenizer.tokenizer_model", sources.hf_origin, "--hf");
  }
}

// The tokenizer's size is the model's, unless that is known to be larger.
void find_vocabulary(ConfigBuilder& builder, const ResolveOptions& options) {
  const TokenizerConfig& t = builder.config.tokenizer;
  if (!options.vocabulary || t.tokenizer_type == TokenizerKind::none) return;
  if (t.tokenizer_type == TokenizerKind::null_ && t.vocab_size == 0) return;  // a rule says so
  try {
    const int64_t tokens = options.vocabulary(t), model = builder.config.model.vocab_size;
    if (t.vocab_size > 0 && t.vocab_size < tokens)
      builder.reject("tokenizer.vocab_size", fmt::format("the tokenizer has {} tokens", tokens),
                     "leave it out");
    else if (model > 0 && model < tokens)
      builder.reject("tokenizer.tokenizer_type",
                     fmt::format("has {} tokens, but the model's vocab_size is {} ({})", tokens, model,
                                 show_origin(builder.origin("model.vocab_size"))),
                     "use the tokenizer that the model was made with");
    else if (model == 0 && t.vocab_size == 0)
      builder.derive("model.vocab_size", tokens, "the tokenizer's size");
  } catch (const Error& error) {
    builder.reject("tokenizer.tokenizer_type", error.what(), "check the tokenizer's files");
  }
}

// What gives the weights of --hf their shapes cannot be another's: it would cut them up in silence.
void keep_shapes_of_weights(ConfigBuilder& builder, const Sources& sources) {
  if (builder.purpose != Purpose::training && builder.purpose != Purpose::forward) return;
  if (!sources.hf.is_object() || !sources.hf_has_weights) return;
  constexpr std::string_view kShapes =
      "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels vocab_size "
      "num_moe_experts moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_latent_size q_lora_rank "
      "kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim mamba_state_dim mamba_head_dim "
      "mamba_num_groups mamba_num_heads hybrid_layer_pattern mtp_num_layers normalization gated_linear_unit "
      "multi_latent_attention qk_layernorm qk_l2_norm share_embeddings_and_output_weights parallel_residual "
      "attention_output_gate softmax_type add_bias_linear add_qkv_bias";
  const Json defaults = Config().to_json().at("model");
  for_each_word(kShapes, [&](std::string_view key) {
    const std::string name = fmt::format("model.{}", key);
    const Json* weights = sources.hf.find(std::string(key));
    if (!weights) weights = defaults.find(std::string(key));  // what is usual is left out
    if (!weights || builder.broken().contains(name) || builder.origin(name).source <= Source::hf) return;
    if (builder.value(name) == *weights) return;
    builder.reject(name, fmt::format("the weights of {} have {}", sources.hf_origin, show_value(*weights)),
                   "leave it out");
  });
}

// Settings that were changed although this build lacks what they ask for.
std::vector<Problem> check_limits(const ConfigBuilder& builder) {
  std::vector<Problem> unavailable;
  Config defaults;
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Origin& origin = builder.origins()[entry.index];
    const Setting& setting = *entry.setting;
    if (!setting.limit || origin.source <= Source::derived || builder.broken().contains(setting.name()))
      continue;
    const Json value = builder.value(setting.name());
    if (!setting.limit->covers(value) || value == read_value(setting, entry.section->object(defaults)))
      continue;
    unavailable.push_back({setting.name(), show_value(value), origin.where,
                           fmt::format("not available yet in this build: {}", setting.limit->feature),
                           std::string(setting.limit->fix)});
  }
  return unavailable;
}

// Settings of something that is off: none is ignored in silence.
void note_idle_settings(ConfigBuilder& builder) {
  if (builder.purpose == Purpose::model || builder.purpose == Purpose::forward) return;
  Config defaults;
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Setting& setting = *entry.setting;
    if (!setting.condition || !builder.given(setting.name()) || setting.condition->holds(builder.config) ||
        builder.value(setting.name()) == read_value(setting, entry.section->object(defaults)))
      continue;
    builder.note(fmt::format("{} has no effect without {}", setting.key, setting.condition->needs));
  }
}

}  // namespace

Resolved resolve(const Sources& sources, const ResolveOptions& options) {
  const Merged merged = merge(sources);
  ConfigBuilder builder(options.purpose);
  for (const Problem& problem : merged.problems) builder.add_problem(problem);
  for (const std::string& note : merged.notes) builder.note(note);
  for (const Catalog::Entry& entry : Catalog::all().entries())
    if (merged.values[entry.index])
      builder.give(entry, *merged.values[entry.index], merged.origins[entry.index]);
  if (sources.unread) throw Refused(builder.problems());  // rules would miss what it says
  keep_shapes_of_weights(builder, sources);
  find_world(builder, sources);
  find_gpus(builder, options);
  find_tokenizer(builder, sources);
  find_vocabulary(builder, options);
  derive_defaults(builder);
  if (options.rules) {
    check_rules(builder);
    note_idle_settings(builder);
  }
  std::vector<Problem> unavailable = check_limits(builder);
  unavailable.insert(unavailable.end(), merged.unavailable.begin(), merged.unavailable.end());
  std::vector<Problem> problems = builder.problems();
  if (!options.allow_unavailable) {
    problems.insert(problems.end(), unavailable.begin(), unavailable.end());
    unavailable.clear();
  }
  if (!problems.empty()) throw Refused(std::move(problems));
  return {std::move(builder.config), builder.origins(),  builder.notes(),
          std::move(unavailable),    builder.world_size, builder.data_parallel_size,
          kinds_of_gpus(builder)};
}

const Origin& Resolved::origin(std::string_view name) const {
  const Catalog::Entry* entry = Catalog::all().find(name);
  require(entry != nullptr, "there is no setting {}", name);
  return origins[entry->index];
}

Json Resolved::given() const {
  Json result = Json::object();
  Config& values = const_cast<Config&>(config);  // only read
  for (const Catalog::Entry& entry : Catalog::all().entries())
    if (origins[entry.index].source > Source::derived) {
      const Setting& setting = *entry.setting;
      result[setting.section][setting.key] = read_value(setting, entry.section->object(values));
    }
  return result;
}

Json Resolved::to_json() const {
  Json result = Json::object();
  result["config"] = config.to_json();
  Json& where = result["origins"] = Json::object();
  for (const Catalog::Entry& entry : Catalog::all().entries()) {
    const Origin& origin = origins[entry.index];
    if (origin.source != Source::builtin) where[entry.setting->name()] = show_origin(origin);
  }
  result["world_size"] = world_size ? Json(*world_size) : Json();
  result["data_parallel_size"] = data_parallel_size ? Json(*data_parallel_size) : Json();
  Json& said = result["notes"] = Json::array();
  for (const std::string& note : notes) said.push_back(note);
  Json& lacking = result["unavailable"] = Json::array();
  for (const Problem& problem : unavailable) lacking.push_back(problem.text());
  return result;
}

Sources read_sources(const CommandLine& line, const SourceReaders& readers) {
  Sources sources = line.sources;
  const auto attempt = [&](const char* flag, const std::string& value, auto&& read) {
    if (value.empty()) return;
    try {
      read();
    } catch (const Error& error) {
      sources.problems.push_back({fmt::format("{} {}", flag, value), "", "", error.what(), ""});
      sources.unread = true;
    }
  };
  attempt("--hf", line.hf_dir, [&] {
    require(readers.hf != nullptr, "not available yet in this build: models of Hugging Face");
    sources.hf = readers.hf(line.hf_dir);
    sources.hf_origin = line.hf_dir;
  });
  attempt("--recipe", line.recipe_name, [&] {
    require(readers.recipe != nullptr, "not available yet in this build: recipes");
    sources.recipe = readers.recipe(line.recipe_name);
  });
  attempt("--config", line.config_path, [&] {
    sources.file = ConfigText{line.config_path, read_text_file(line.config_path)};
  });
  // Whether a checkpoint is asked, the other sources say.
  const Merged merged = merge(sources);
  const auto value = [&](std::string_view name) {
    return merged.values[Catalog::all().find(name)->index].value_or(Json());
  };
  if (!readers.checkpoint || value("checkpoint.use_checkpoint_args") != Json(true)) return sources;
  // A run that has nothing to go on with begins with the other one's weights.
  for (const char* name : {"checkpoint.load", "checkpoint.pretrained_checkpoint"}) {
    const Json from = value(name), number = value("checkpoint.ckpt_step");
    if (!from.is_string() || !sources.checkpoint.is_null()) continue;
    std::optional<int64_t> step;
    if (number.is_int() && name == std::string_view("checkpoint.load")) step = number.as_int();
    attempt("--use-checkpoint-args", from.as_string(), [&] {
      sources.checkpoint = readers.checkpoint(from.as_string(), step);
      sources.checkpoint_origin = from.as_string();
      if (value("checkpoint.use_mp_args_from_checkpoint_args") == Json(true))
        sources.checkpoint_layout = readers.checkpoint_layout(from.as_string(), step);
    });
  }
  return sources;
}

}  // namespace megatron
