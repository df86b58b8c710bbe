#include "megatron/bridge/megatron/args.h"

#include <algorithm>

#include "megatron/base/problems.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"

namespace megatron {
namespace {

// Arguments that stand for one of our settings under another name.
struct Rename {
  std::string_view argument, key;
  bool inverted = false;
};
constexpr Rename kRenames[] = {
    {"padded_vocab_size", "vocab_size"},
    {"num_experts", "num_moe_experts"},
    {"norm_epsilon", "layernorm_epsilon"},
    {"use_rope_scaling", "rope_scaling"},
    {"untie_embeddings_and_output_weights", "share_embeddings_and_output_weights", true},
    {"apply_layernorm_1p", "layernorm_zero_centered_gamma"},
    {"rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor"},
    {"hybrid_override_pattern", "hybrid_layer_pattern"},
};

// Arguments that say nothing of the model: what other arguments imply, or how the run computed.
constexpr std::string_view kIgnored[] = {
    "vocab_size",
    "make_vocab_size_divisible_by",
    "encoder_num_layers",
    "encoder_seq_length",
    "decoder_seq_length",
    "is_hybrid_model",
    "add_position_embedding",
    "perform_initialization",
    "init_model_with_meta_device",
    "cache_mla_latents",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
    "moe_shared_expert_overlap",
    "moe_router_padding_for_quantization",
    "moe_enable_routing_replay",
    "moe_dispatch_fwd_dtype",
    "moe_combine_bwd_dtype",
    "moe_per_layer_logging",
    "moe_paged_stash",
    "moe_paged_stash_page_size",
    "moe_paged_stash_buffer_size_factor_cuda",
    "moe_paged_stash_buffer_size_factor_cpu",
    "moe_use_upcycling",
    "moe_upcycling_granularity",
};

// The flag that would give the argument, where it belongs to a model.
const Catalog::Flag* model_flag(std::string_view argument) {
  const Catalog::Flag* flag = Catalog::all().find_flag("--" + std::string(argument));
  if (!flag) return nullptr;
  const Schema* schema = flag->entry->section->schema;
  return schema == &megatron::schema<ModelConfig>() || schema == &megatron::schema<MoeConfig>() ? flag
                                                                                                : nullptr;
}

bool is_model_key(std::string_view key) {
  const Catalog::Entry* entry = Catalog::all().find("model." + std::string(key));
  if (!entry) return false;
  const Schema* schema = entry->section->schema;
  return schema == &megatron::schema<ModelConfig>() || schema == &megatron::schema<MoeConfig>();
}

// What was not given: null, and for switches false.
bool is_unset(const Json& value) {
  return value.is_null() || (value.is_array() && value.size() == 0) ||
         (value.is_string() && value.as_string().empty());
}

void apply_shorthand(const Shorthand& shorthand, Json& model) {
  // "model.a=true model.b=silu"
  std::string_view rest = shorthand.settings;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = word.find('=');
    if (!word.starts_with("model.") || equals == std::string_view::npos) continue;
    const std::string_view key = word.substr(6, equals - 6), value = word.substr(equals + 1);
    model[key] = value == "true" ? Json(true) : value == "false" ? Json(false) : Json(value);
  }
}

// Whether an argument that is no setting of ours would be refused on the command line.
const CompatRow* refused_argument(const std::string& argument, const Json& value) {
  if (!value.is_bool() || !value.as_bool()) return nullptr;
  const CompatRow* row = find_compat_flag("--" + argument).row;
  return row && row->verdict == CompatRow::Verdict::refused ? row : nullptr;
}

bool is_on(const Json& args, std::string_view name) {
  const Json* value = args.find(name);
  return value && value->is_bool() && value->as_bool();
}

std::string argument_of(std::string_view flag) {  // "--openai-gelu" gives openai_gelu
  std::string name(flag.substr(2));
  std::ranges::replace(name, '-', '_');
  return name;
}

// Arguments whose meaning depends on others.
void apply_conditions(const Json& args, Json& model, const std::function<void(const std::string&)>& note) {
  if (const Json* grouped = args.find("group_query_attention");
      grouped && !is_on(args, "group_query_attention"))
    std::erase_if(model.as_object(), [](const auto& entry) { return entry.first == "num_query_groups"; });
  if (model.contains("heterogeneous_layers_config_encoded_json"))
    std::erase_if(model.as_object(),
                  [](const auto& entry) { return entry.first == "heterogeneous_layers_config_path"; });
  // Megatron-LM's fused bias and GELU compute the tanh form.
  const Json* activation = model.find("activation_func");
  const bool gelu = !activation || *activation == Json("gelu");
  if (gelu && is_on(args, "bias_gelu_fusion") && !is_on(args, "disable_bias_linear")) {
    model["activation_func"] = "gelu_tanh";
    note("GELU is the tanh form, as --bias-gelu-fusion computed it");
  }
}

}  // namespace

MegatronLayout layout_from_args(const Json& args) {
  const auto size = [&](std::string_view name) {
    const Json* value = args.find(name);
    return value && value->is_int() && value->as_int() > 0 ? value->as_int() : 1;
  };
  MegatronLayout layout{size("tensor_model_parallel_size"), size("pipeline_model_parallel_size"),
                        size("virtual_pipeline_model_parallel_size"), size("expert_model_parallel_size"), 1};
  const Json* expert_tensor = args.find("expert_tensor_parallel_size");
  layout.expert_tensor =
      expert_tensor && expert_tensor->is_int() ? size("expert_tensor_parallel_size") : layout.tensor;
  return layout;
}

ModelConfig model_from_args(const Json& args, const std::string& origin,
                            const std::function<void(const std::string&)>& note) {
  if (!args.is_object()) throw ConfigError(fmt::format("{}: args is not a Namespace", origin));
  Json model = Json::object();
  Problems problems;
  for (const auto& [name, value] : args.as_object()) {
    if (is_unset(value) || std::ranges::find(kIgnored, name) != std::end(kIgnored)) continue;
    const auto rename = std::ranges::find(kRenames, name, &Rename::argument);
    if (rename != std::end(kRenames))
      model[rename->key] = rename->inverted && value.is_bool() ? Json(!value.as_bool()) : value;
    else if (is_model_key(name))
      model[name] = value;
    else if (const Catalog::Flag* flag = model_flag(name))
      model[flag->entry->setting->key] = !flag->on && value.is_bool() ? Json(!value.as_bool()) : value;
    else if (const CompatRow* refused = refused_argument(name, value))
      problems.add("args.{}: {}", name, refused->text);
  }
  for (const Shorthand& shorthand : shorthands())
    if (is_on(args, argument_of(shorthand.flag))) apply_shorthand(shorthand, model);
  apply_conditions(args, model, note);
  problems.raise(fmt::format("{}: the model cannot be computed here", origin));
  const Json* vocabulary = args.find("vocab_size");
  if (vocabulary && model.contains("vocab_size") && vocabulary->is_int() &&
      !(*vocabulary == model["vocab_size"]))
    note(fmt::format("the vocabulary's padding ({} to {}) was trained like the rest and is kept",
                     vocabulary->dump(), model["vocab_size"].dump()));
  // Rows of padding are ordinary rows there, so none are added here.
  model["make_vocab_size_divisible_by"] = 1;
  Sources sources;
  sources.hf_origin = origin;
  sources.hf = std::move(model);
  return resolve(sources, {.purpose = Purpose::model, .allow_unavailable = true}).config.model;
}

Json args_from_model(const ModelConfig& model) {
  Config config;
  config.model = model;
  const Json settings = config.to_json().at("model");
  Json args = Json::object();
  for (const Schema* rows : {&schema<ModelConfig>(), &schema<MoeConfig>()}) {
    for (const Setting& setting : rows->rows()) {
      const Json* value = settings.find(setting.key);
      // 0 stands for a size that is not set, which is None there.
      const bool unset = value && value->is_int() && static_cast<double>(value->as_int()) < setting.lowest;
      if (!value || unset) continue;
      args[setting.key] = *value;
      const auto rename = std::ranges::find(kRenames, setting.key, &Rename::key);
      if (rename != std::end(kRenames))
        args[rename->argument] = rename->inverted && value->is_bool() ? Json(!value->as_bool()) : *value;
    }
  }
  // Whoever reads them by --use-checkpoint-args knows activations by these names.
  const bool gated = model.gated_linear_unit;
  args["swiglu"] = gated && model.activation_func == Activation::silu;
  args["quick_geglu"] = gated && model.activation_func == Activation::quick_gelu;
  args["squared_relu"] = !gated && model.activation_func == Activation::squared_relu;
  args["openai_gelu"] = !gated && model.activation_func == Activation::gelu_tanh;
  args["bias_gelu_fusion"] = false;
  args["add_position_embedding"] = model.position_embedding_type == PositionEmbedding::learned_absolute;
  args["use_rotary_position_embeddings"] = model.position_embedding_type == PositionEmbedding::rope;
  args["group_query_attention"] =
      model.num_query_groups != 0 && model.num_query_groups != model.num_attention_heads;
  args["disable_bias_linear"] = !model.add_bias_linear;
  for (std::string_view size :
       {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"})
    args[size] = 1;
  return args;
}

}  // namespace megatron
