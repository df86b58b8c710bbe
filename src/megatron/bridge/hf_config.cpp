#include "megatron/bridge/hf_config.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/error.h"

namespace megatron {
namespace {

const Json* present(const Json& object, std::string_view key) {
  const Json* value = object.is_object() ? object.find(key) : nullptr;
  return value && !value->is_null() ? value : nullptr;
}

std::string joined(std::initializer_list<std::string_view> keys) {
  std::string text;
  for (std::string_view key : keys) text += (text.empty() ? "" : " or ") + std::string(key);
  return text;
}

// What training tools, generation and other frameworks read, and what follows from other keys: no tensor of
// the model depends on them.
constexpr std::string_view kWithoutEffect[] = {"_attn_implementation",
                                               "_name_or_path",
                                               "_sliding_window_pattern",
                                               "architectures",
                                               "auto_map",
                                               "bad_words_ids",
                                               "begin_suppress_tokens",
                                               "boi_token_id",
                                               "boi_token_index",
                                               "bos_token_id",
                                               "cache_implementation",
                                               "chunk_size_feed_forward",
                                               "classifier_dropout",
                                               "cross_attention_hidden_size",
                                               "decoder_start_token_id",
                                               "dense_act_fn",
                                               "diversity_penalty",
                                               "do_sample",
                                               "dtype",
                                               "early_stopping",
                                               "embd_pdrop",
                                               "encoder_no_repeat_ngram_size",
                                               "eoi_token_id",
                                               "eoi_token_index",
                                               "eos_token_id",
                                               "expand",
                                               "exponential_decay_length_penalty",
                                               "finetuning_task",
                                               "forced_bos_token_id",
                                               "forced_eos_token_id",
                                               "gradient_checkpointing",
                                               "id2label",
                                               "initializer_factor",
                                               "initializer_range",
                                               "is_encoder_decoder",
                                               "is_gated_act",
                                               "label2id",
                                               "length_penalty",
                                               "mamba_proj_bias",
                                               "mamba_ssm_cache_dtype",
                                               "max_length",
                                               "max_window_layers",
                                               "min_length",
                                               "model_type",
                                               "moe_shared_expert_overlap",
                                               "mtp_layers_block_type",
                                               "no_repeat_ngram_size",
                                               "num_beam_groups",
                                               "num_beams",
                                               "num_labels",
                                               "num_logits_to_keep",
                                               "num_return_sequences",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "output_router_logits",
                                               "output_scores",
                                               "pad_token_id",
                                               "prefix",
                                               "pretraining_tp",
                                               "problem_type",
                                               "pruned_heads",
                                               "qk_head_dim",
                                               "remove_invalid_values",
                                               "reorder_and_upcast_attn",
                                               "repetition_penalty",
                                               "rescale_prenorm_residual",
                                               "residual_in_fp32",
                                               "return_dict",
                                               "return_dict_in_generate",
                                               "router_aux_loss_coef",
                                               "router_jitter_noise",
                                               "sep_token_id",
                                               "summary_activation",
                                               "summary_first_dropout",
                                               "summary_proj_to_labels",
                                               "summary_type",
                                               "summary_use_proj",
                                               "suppress_tokens",
                                               "task_specific_params",
                                               "temperature",
                                               "tf_legacy_loss",
                                               "time_step_floor",
                                               "time_step_max",
                                               "time_step_min",
                                               "time_step_rank",
                                               "tokenizer_class",
                                               "top_k",
                                               "top_p",
                                               "torch_dtype",
                                               "torchscript",
                                               "transformers_version",
                                               "typical_p",
                                               "unsloth_fixed",
                                               "unsloth_version",
                                               "use_bfloat16",
                                               "use_cache",
                                               "use_mamba_kernels",
                                               "vision_end_token_id",
                                               "vision_start_token_id"};

constexpr int64_t kMaxValue = int64_t{1} << 40, kMaxLayers = 1 << 16;

[[noreturn]] void reject(std::string_view key, const std::string& why) {
  throw ConfigError(fmt::format("config.json: {} {}", key, why));
}

// What `read` makes of a value; a type that is not the wanted one is refused under the key's name.
template <class Read>
auto typed(std::string_view key, const Json& value, std::string_view wanted, const Read& read) {
  try {
    return read(value);
  } catch (const Error&) {
    reject(key, fmt::format("is {}, not {}", value.dump(), wanted));
  }
}

int64_t count(std::string_view key, const Json& value) {
  const int64_t number = typed(key, value, "a whole number", [](const Json& json) { return json.as_int(); });
  if (number < 0 || number > kMaxValue) reject(key, fmt::format("is {}", number));
  return number;
}

double number_of(std::string_view key, const Json& value) {
  return typed(key, value, "a number", [](const Json& json) { return json.as_double(); });
}

std::string text_of(std::string_view key, const Json& value) {
  return typed(key, value, "a string", [](const Json& json) { return json.as_string(); });
}

}  // namespace

HfConfig::HfConfig(Json json) : json_(std::move(json)) {
  if (!json_.is_object()) throw ConfigError("config.json: it is no JSON object");
}

HfConfig HfConfig::read(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (!std::filesystem::exists(path))
    throw ConfigError(
        fmt::format("{}: there is no config.json; name the directory of a Hugging Face model", directory));
  try {
    return HfConfig(Json::read(path));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", directory, error.what()));
  } catch (const Error& error) {  // it names the file itself
    throw ConfigError(error.what());
  }
}

std::string HfConfig::architecture() const {
  const Json* list = find({"architectures"});
  if (!list || !list->is_array() || list->size() == 0)
    throw ConfigError("config.json: it has no architectures, so the kind of model is unknown");
  return text_of("architectures", (*list)[0]);
}

std::string HfConfig::dtype() const { return text({"dtype", "torch_dtype"}, "float32"); }

std::optional<HfConfig::Entry> HfConfig::entry(std::initializer_list<std::string_view> keys) const {
  if (asked_) asked_->insert(keys.begin(), keys.end());
  for (std::string_view key : keys)
    if (const Json* value = present(json_, key)) return Entry{key, value};
  return {};
}

const Json* HfConfig::find(std::initializer_list<std::string_view> keys) const {
  const std::optional<Entry> found = entry(keys);
  return found ? found->value : nullptr;
}

int64_t HfConfig::integer(std::initializer_list<std::string_view> keys,
                          std::optional<int64_t> fallback) const {
  const std::optional<Entry> found = entry(keys);
  if (found && fallback) return count(found->key, *found->value);
  if (found) return size_of(*found);
  if (!fallback) reject(joined(keys), "is missing");
  return *fallback;
}

int64_t HfConfig::size(std::initializer_list<std::string_view> keys, int64_t fallback) const {
  const std::optional<Entry> found = entry(keys);
  return found ? size_of(*found) : fallback;
}

int64_t HfConfig::size_of(const Entry& entry) const {
  const int64_t number = count(entry.key, *entry.value);
  if (number == 0) reject(entry.key, "is 0; it has to be 1 or more");
  return number;
}

int64_t HfConfig::layers(std::initializer_list<std::string_view> keys,
                         std::optional<int64_t> fallback) const {
  const int64_t layers = fallback ? size(keys, *fallback) : integer(keys);
  if (layers > kMaxLayers) reject(joined(keys), fmt::format("is {}, more than {}", layers, kMaxLayers));
  return layers;
}

double HfConfig::real(std::initializer_list<std::string_view> keys, std::optional<double> fallback) const {
  if (const std::optional<Entry> found = entry(keys)) return number_of(found->key, *found->value);
  if (!fallback) reject(joined(keys), "is missing");
  return *fallback;
}

std::string HfConfig::text(std::initializer_list<std::string_view> keys, std::string_view fallback) const {
  const std::optional<Entry> found = entry(keys);
  return found ? text_of(found->key, *found->value) : std::string(fallback);
}

bool HfConfig::flag(std::string_view key, bool fallback) const {
  const Json* value = find({key});
  return value ? typed(key, *value, "true or false", [](const Json& json) { return json.as_bool(); })
               : fallback;
}

const std::vector<Json>& HfConfig::list(std::string_view key, int64_t size) const {
  const Json* value = find({key});
  if (!value) reject(key, "is missing");
  if (!value->is_array()) reject(key, fmt::format("is {}, not a list", value->dump()));
  if (size >= 0 && static_cast<int64_t>(value->size()) != size)
    reject(key, fmt::format("has {} entries instead of {}", value->size(), size));
  return value->as_array();
}

void HfConfig::expect(std::string_view key, const Json& value, std::string_view what) const {
  const Json* found = find({key});
  if (found && *found != value)
    reject(key, fmt::format("is {}: it changes {}, which is built for {} alone", found->dump(), what,
                            value.dump()));
}

void HfConfig::pass_over(std::initializer_list<std::string_view> keys) const { entry(keys); }

HfConfig HfConfig::noting(std::shared_ptr<Keys> asked) const {
  HfConfig config = *this;
  config.asked_ = std::move(asked);
  return config;
}

HfConfig HfConfig::with(Json json) const {
  HfConfig config(std::move(json));
  config.asked_ = asked_;
  return config;
}

std::vector<std::string> HfConfig::unknown_keys(const Keys& asked) const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : json_.as_object())
    if (!value.is_null() && !asked.contains(key) &&
        std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) == std::end(kWithoutEffect))
      unknown.push_back(key);
  return unknown;
}

HfRope HfConfig::rope(std::string_view layer_type) const {
  HfRope rope;
  pass_over({"rope_theta", "partial_rotary_factor"});  // where the dictionary has them
  const Json* dict = nullptr;
  if (const std::optional<Entry> found = entry({"rope_parameters", "rope_scaling"})) {
    dict = found->value;
    if (!dict->is_object()) reject(found->key, fmt::format("is {}, not an object", dict->dump()));
    if (const Json* own = present(*dict, layer_type); own && own->is_object()) dict = own;
  }
  if (dict) {
    rope.scaling = *dict;
    for (std::string_view key : {"rope_type", "type"})
      if (const Json* type = present(*dict, key)) {
        rope.type = text_of(key, *type);
        break;
      }
    if (const Json* theta = present(*dict, "rope_theta")) rope.theta = number_of("rope_theta", *theta);
    if (const Json* part = present(*dict, "partial_rotary_factor"))
      rope.partial_rotary_factor = number_of("partial_rotary_factor", *part);
  }
  if (rope.type == "mrope") rope.type = "default";
  if (!rope.theta && has("rope_theta")) rope.theta = real({"rope_theta"});
  if (!rope.partial_rotary_factor && has("partial_rotary_factor"))
    rope.partial_rotary_factor = real({"partial_rotary_factor"});
  return rope;
}

}  // namespace megatron
