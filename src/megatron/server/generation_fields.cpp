#include "megatron/server/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "megatron/server/api_error.h"

namespace megatron {
namespace {

constexpr int64_t kMaxAnswers = 128;
constexpr size_t kMaxStops = 16;

std::vector<std::pair<int64_t, float>> logit_bias(Fields& fields, int64_t size) {
  std::vector<std::pair<int64_t, float>> biases;
  const Json* value = fields.find("logit_bias");
  if (!value) return biases;
  if (!value->is_object()) throw ApiError(400, "logit_bias: expected an object", "logit_bias");
  for (const auto& [name, bias] : value->as_object()) {
    int64_t token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0 || token >= size)
      throw ApiError(400, fmt::format("logit_bias: '{}' is no token (expected 0 to {})", name, size - 1),
                     "logit_bias");
    if (!bias.is_number() || !(std::abs(bias.as_double()) <= 100))
      throw ApiError(400, fmt::format("logit_bias: {} is out of range (expected -100 to 100)", bias.dump()),
                     "logit_bias");
    biases.emplace_back(token, static_cast<float>(bias.as_double()));
  }
  return biases;
}

// json_schema: {"schema": …} of response_format, or the schema itself as text or value elsewhere.
Json schema_value(const Json& value, const std::string& field) {
  if (!value.is_string()) return value;
  try {
    return Json::parse(value.as_string(), field);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), field);
  }
}

class ConstraintFields {
 public:
  ConstraintFields(Fields& fields, const ServedModel& model, ConstraintCache& cache)
      : fields_(fields), vocabulary_(model.vocabulary), cache_(cache) {}

  std::shared_ptr<const Constraint> read() {
    if (const Json* format = fields_.find("response_format")) response_format(*format);
    if (const Json* schema = fields_.find("guided_json"))
      json("guided_json", schema_value(*schema, "guided_json"));
    if (const Json* pattern = fields_.find("guided_regex")) regex("guided_regex", *pattern);
    if (const Json* list = fields_.find("guided_choice")) choices("guided_choice", *list);
    if (const Json* all = fields_.find("structured_outputs")) {
      if (!all->is_object())
        throw ApiError(400, "structured_outputs: expected an object", "structured_outputs");
      // Clients write members that they do not use as null.
      const auto given = [&](const char* name) {
        const Json* value = all->find(name);
        return value && !value->is_null() ? value : nullptr;
      };
      if (const Json* schema = given("json"))
        json("structured_outputs", schema_value(*schema, "structured_outputs"));
      if (const Json* pattern = given("regex")) regex("structured_outputs", *pattern);
      if (const Json* list = given("choice")) choices("structured_outputs", *list);
      if (const Json* any = given("json_object"); any && any->is_bool() && any->as_bool())
        object("structured_outputs");
      for (const char* name : {"grammar", "structural_tag"})
        if (given(name))
          throw ApiError(
              400, fmt::format("structured_outputs: {} is not supported; use json, regex or choice", name),
              "structured_outputs");
    }
    return std::move(constraint_);
  }

 private:
  void keep(const std::string& field, const std::string& key, const ConstraintCache::Compile& compile) {
    if (constraint_)
      throw ApiError(400, fmt::format("{}: there is another constraint; keep one", field), field);
    constraint_ = compile_for(field, [&] { return cache_.get(key, compile); });
  }
  void json(const std::string& field, const Json& schema) {
    keep(field, "json " + schema.dump(), [&] { return compile_json_schema(vocabulary_, schema); });
  }
  void regex(const std::string& field, const Json& pattern) {
    if (!pattern.is_string()) throw ApiError(400, field + ": expected a regular expression as string", field);
    keep(field, "regex " + pattern.as_string(),
         [&] { return compile_regex(vocabulary_, pattern.as_string()); });
  }
  void choices(const std::string& field, const Json& list) {
    std::vector<std::string> texts;
    if (!list.is_array()) throw ApiError(400, field + ": expected an array of strings", field);
    for (const Json& one : list.as_array()) {
      if (!one.is_string()) throw ApiError(400, field + ": expected an array of strings", field);
      texts.push_back(one.as_string());
    }
    keep(field, "choice " + list.dump(), [&] { return compile_choices(vocabulary_, texts); });
  }
  void object(const std::string& field) {
    keep(field, "object", [&] { return compile_json_object(vocabulary_); });
  }

  void response_format(const Json& format) {
    const std::string field = "response_format";
    const Json* type = format.find("type");
    if (!type || !type->is_string()) throw ApiError(400, field + ": type is missing", field);
    if (type->as_string() == "text") return;
    if (type->as_string() == "json_object") return object(field);
    if (type->as_string() != "json_schema")
      throw ApiError(400,
                     fmt::format("{}: type '{}' is not known; use text, json_object or json_schema", field,
                                 type->as_string()),
                     field);
    const Json* wrapper = format.find("json_schema");
    const Json* schema = wrapper ? wrapper->find("schema") : nullptr;
    if (!schema) throw ApiError(400, field + ": json_schema.schema is missing", field);
    json(field, *schema);
  }

  Fields& fields_;
  const SharedVocabulary& vocabulary_;
  ConstraintCache& cache_;
  std::shared_ptr<const Constraint> constraint_;
};

void read_sampling(Fields& fields, const ServedModel& model, GenerationSettings& settings) {
  Sampling& sampling = settings.request.sampling;
  sampling.temperature = fields.number("temperature", 1, 0, 100);
  // To the sampler 0 means all tokens; to clients it means the likeliest.
  sampling.top_p = std::max(fields.number("top_p", 1, 0, 1), 1e-6);
  sampling.top_k = std::max<int64_t>(fields.whole("top_k", 0, -1), 0);
  sampling.min_p = fields.number("min_p", 0, 0, 1);
  sampling.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  sampling.repetition_penalty = fields.number("repetition_penalty", model.repetition_penalty, 1e-3, 100);
  sampling.logit_bias = logit_bias(fields, model.vocab_size);
  settings.seeded = fields.find("seed") != nullptr;
  sampling.seed = settings.seeded
                      ? static_cast<uint64_t>(fields.whole("seed", 0, std::numeric_limits<int64_t>::min()))
                      : (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
}

void read_ends(Fields& fields, const ServedModel& model, GenerationSettings& settings) {
  settings.text.stop = fields.texts("stop");
  if (settings.text.stop.size() > kMaxStops)
    throw ApiError(
        400, fmt::format("stop: {} strings are too many (at most {})", settings.text.stop.size(), kMaxStops),
        "stop");
  for (const std::string& stop : settings.text.stop)
    if (stop.empty()) throw ApiError(400, "stop: a string is empty; leave it out", "stop");
  settings.text.include_stop = fields.flag("include_stop_str_in_output", false);
  settings.text.skip_special_tokens = fields.flag("skip_special_tokens", true);
  if (!fields.flag("ignore_eos", false)) settings.request.end_tokens = model.end_tokens;
  std::set<int64_t> ends(settings.request.end_tokens.begin(), settings.request.end_tokens.end());
  if (const Json* list = fields.find("stop_token_ids")) {
    if (!list->is_array())
      throw ApiError(400, "stop_token_ids: expected an array of integers", "stop_token_ids");
    for (int64_t id : token_ids(*list, model.vocab_size, "stop_token_ids"))
      if (ends.insert(id).second) {
        settings.request.end_tokens.push_back(id);
        settings.stop_tokens.insert(id);
      }
  }
  if (settings.request.min_tokens > 0 && std::ssize(ends) >= model.vocab_size)
    throw ApiError(400, "min_tokens: every token ends the answer; give fewer stop_token_ids", "min_tokens");
}

}  // namespace

std::shared_ptr<const Constraint> compile_for(const std::string& field,
                                              const ConstraintCache::Compile& compile) {
  try {
    return compile();
  } catch (const Error& error) {
    throw ApiError(400, fmt::format("{}: {}", field, error.what()), field);
  }
}

void require_model(Fields& fields, const ServedModel& model) {
  const std::string name = fields.text("model", model.name);
  if (name != model.name)
    throw ApiError(404, fmt::format("The model `{}` does not exist; this server has `{}`", name, model.name),
                   "model", "model_not_found");
}

GenerationSettings read_generation(Fields& fields, const ServedModel& model, ConstraintCache& constraints) {
  GenerationSettings settings;
  settings.request.max_tokens = fields.whole("max_tokens", -1, 0);
  if (fields.find("max_completion_tokens"))
    settings.request.max_tokens = fields.whole("max_completion_tokens", -1, 0);
  settings.request.min_tokens = fields.whole("min_tokens", 0, 0);
  settings.request.priority = static_cast<int>(fields.whole("priority", 0, -1000000, 1000000));
  settings.answers = fields.whole("n", 1, 1, kMaxAnswers);
  settings.stream = fields.flag("stream", false);
  read_sampling(fields, model, settings);
  read_ends(fields, model, settings);
  if (const Json* options = fields.find("stream_options")) {
    if (!settings.stream) throw ApiError(400, "stream_options: it needs stream true", "stream_options");
    const Json* usage = options->find("include_usage");
    settings.include_usage = usage && usage->is_bool() && usage->as_bool();
  }
  settings.request.constraint = ConstraintFields(fields, model, constraints).read();
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "verbosity", "request_id", "detokenize",
                 "spaces_between_special_tokens", "guided_decoding_backend"});
  return settings;
}

}  // namespace megatron
