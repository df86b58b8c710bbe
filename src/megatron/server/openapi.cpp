#include "megatron/server/openapi.h"

#include <array>
#include <span>
#include <string_view>

namespace megatron {
namespace {

struct Field {
  const char *name, *type, *help;  // type: "string", "string|array"; "": any
  bool required = false;
};
constexpr auto kGeneration = std::to_array<Field>({
    {"model", "string", "name of the served model"},
    {"max_tokens", "integer", "tokens of an answer at most"},
    {"max_completion_tokens", "integer", "the same, and goes before it"},
    {"min_tokens", "integer", "tokens before an end token may come"},
    {"temperature", "number", "0: the likeliest token each time"},
    {"top_p", "number", "of the likeliest tokens that together have this probability"},
    {"top_k", "integer", "of the k likeliest tokens"},
    {"min_p", "number", "of tokens with this share of the likeliest one's probability"},
    {"presence_penalty", "number", "off the logits of tokens of the answer"},
    {"frequency_penalty", "number", "likewise, times their uses"},
    {"repetition_penalty", "number", "above 1: tokens of prompt and answer become less likely"},
    {"logit_bias", "object", "added to logits, by token"},
    {"seed", "integer", "same seed, same answer"},
    {"n", "integer", "answers to each prompt"},
    {"stop", "string|array", "texts that end an answer"},
    {"include_stop_str_in_output", "boolean", "the text that ended an answer is part of it"},
    {"stop_token_ids", "array", "tokens that end an answer"},
    {"ignore_eos", "boolean", "go on past the end of a text"},
    {"stream", "boolean", "server-sent events"},
    {"stream_options", "object", "include_usage"},
    {"skip_special_tokens", "boolean", "leave them out of the text"},
    {"priority", "integer", "lower goes first"},
    {"response_format", "object", "text, json_object or json_schema"},
    {"guided_regex", "string", "a regular expression for the whole answer"},
    {"guided_choice", "array", "texts of which the answer is one"},
    {"guided_json", "", "a JSON schema for the whole answer"},
    {"structured_outputs", "object", "json, regex, choice or json_object"},
    {"add_special_tokens", "boolean", "those that the tokenizer puts around a text"},
    {"user", "string", "not looked at"},
});
constexpr auto kCompletion =
    std::to_array<Field>({{"prompt", "string|array", "text, texts, tokens, or lists of tokens", true},
                          {"echo", "boolean", "the prompt in front of the answer"},
                          {"logprobs", "integer", "of the N likeliest tokens too"},
                          {"prompt_logprobs", "integer", "the same of the prompt"}});
constexpr auto kChat =
    std::to_array<Field>({{"messages", "array", "the conversation", true},
                          {"tools", "array", "functions that the model may call"},
                          {"tool_choice", "string|object", "none, auto, required or one function"},
                          {"parallel_tool_calls", "boolean", "several calls in one answer"},
                          {"logprobs", "boolean", "log-probabilities of tokens"},
                          {"top_logprobs", "integer", "and of the N likeliest"},
                          {"reasoning_effort", "string", "a name for the template"},
                          {"documents", "array", "likewise"},
                          {"chat_template_kwargs", "object", "further names for the template"},
                          {"add_generation_prompt", "boolean", "the template begins the answer"},
                          {"continue_final_message", "boolean", "the answer goes on with the last message"}});
constexpr auto kTokenize =
    std::to_array<Field>({{"prompt", "string", "the text"},
                          {"messages", "array", "or a conversation"},
                          {"add_special_tokens", "boolean", "those that the tokenizer puts around a text"},
                          {"return_token_strs", "boolean", "the text of each token too"}});
constexpr auto kDetokenize = std::to_array<Field>({{"tokens", "array", "the tokens", true}});

Json type_of(std::string_view types) {
  const size_t bar = types.find('|');
  if (bar == std::string_view::npos) return Json(std::string(types));
  return Json(Json::Array{Json(std::string(types.substr(0, bar))), Json(std::string(types.substr(bar + 1)))});
}

// The schema of an object with these fields.
Json body_of(std::initializer_list<std::span<const Field>> lists) {
  Json properties = Json::object(), required = Json::array(), body = Json::object();
  for (const std::span<const Field> fields : lists)
    for (const Field& field : fields) {
      Json schema = Json::object();
      if (*field.type) schema["type"] = type_of(field.type);
      schema["description"] = field.help;
      properties[field.name] = schema;
      if (field.required) required.push_back(field.name);
    }
  body["type"] = "object";
  body["properties"] = properties;
  if (required.size() > 0) body["required"] = required;
  return body;
}

Json json_content(const Json& schema) {
  Json media = Json::object(), content = Json::object();
  media["schema"] = schema;
  content["application/json"] = media;
  return content;
}

// {"error": {"message", …}}, whatever the fault.
Json error_schema() {
  Json text = Json::object(), detail = Json::object(), fields = Json::object(), outer = Json::object(),
       schema = Json::object();
  text["type"] = "string";
  fields["message"] = text;
  fields["type"] = text;
  detail["type"] = "object";
  detail["properties"] = fields;
  detail["required"] = Json(Json::Array{Json("message"), Json("type")});
  outer["error"] = detail;
  schema["type"] = "object";
  schema["properties"] = outer;
  schema["required"] = Json(Json::Array{Json("error")});
  return schema;
}

Json operation(const char* summary, const Json& body) {
  Json answer = Json::object(), refusal = Json::object(), answers = Json::object(), result = Json::object();
  answer["description"] = "done";
  refusal["description"] = "refused: 4xx, or 503 of a server that ends";
  refusal["content"] = json_content(error_schema());
  answers["200"] = answer;
  answers["default"] = refusal;
  result["summary"] = summary;
  result["responses"] = answers;
  if (body.is_null()) return result;
  Json request = Json::object();
  request["required"] = true;
  request["content"] = json_content(body);
  result["requestBody"] = request;
  return result;
}

}  // namespace

Json openapi_document(const std::string& version) {
  Json paths = Json::object();
  const auto add = [&](const char* path, const char* method, const char* summary, const Json& body) {
    Json entry = Json::object();
    entry[method] = operation(summary, body);
    paths[path] = entry;
  };
  add("/v1/completions", "post", "Go on from prompts.", body_of({kCompletion, kGeneration}));
  add("/v1/chat/completions", "post", "Answer a conversation.", body_of({kChat, kGeneration}));
  add("/v1/models", "get", "The served model.", Json());
  add("/tokenize", "post", "The tokens of a text.", body_of({kTokenize}));
  add("/detokenize", "post", "The text of tokens.", body_of({kDetokenize}));
  add("/health", "get", "200 while requests are taken.", Json());
  add("/version", "get", "The version of the program.", Json());
  add("/metrics", "get", "Counts and times for Prometheus.", Json());
  Json info = Json::object(), document = Json::object();
  info["title"] = "Megatron";
  info["version"] = version;
  document["openapi"] = "3.1.0";
  document["info"] = info;
  document["paths"] = paths;
  return document;
}

}  // namespace megatron
