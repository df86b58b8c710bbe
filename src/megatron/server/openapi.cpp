#include "megatron/server/openapi.h"

#include <array>

namespace megatron {
namespace {

struct Field {
  const char *name, *type, *help;
};
constexpr std::array<Field, 23> kGeneration = {{
    {"model", "string", "name of the served model"},
    {"max_tokens", "integer", "tokens of an answer at most"},
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
    {"stop", "array", "texts that end an answer"},
    {"stop_token_ids", "array", "tokens that end an answer"},
    {"ignore_eos", "boolean", "go on past the end of a text"},
    {"stream", "boolean", "server-sent events"},
    {"stream_options", "object", "include_usage"},
    {"skip_special_tokens", "boolean", "leave them out of the text"},
    {"priority", "integer", "lower goes first"},
    {"response_format", "object", "text, json_object or json_schema"},
    {"guided_regex", "string", "a regular expression for the whole answer"},
    {"guided_choice", "array", "texts of which the answer is one"},
}};
constexpr std::array<Field, 4> kCompletion = {{{"prompt", "", "text, texts, tokens, or lists of tokens"},
                                               {"echo", "boolean", "the prompt in front of the answer"},
                                               {"logprobs", "integer", "of the N likeliest tokens too"},
                                               {"prompt_logprobs", "integer", "the same of the prompt"}}};
constexpr std::array<Field, 7> kChat = {
    {{"messages", "array", "the conversation"},
     {"tools", "array", "functions that the model may call"},
     {"tool_choice", "", "none, auto, required or one function"},
     {"parallel_tool_calls", "boolean", "several calls in one answer"},
     {"logprobs", "boolean", "log-probabilities of tokens"},
     {"top_logprobs", "integer", "and of the N likeliest"},
     {"chat_template_kwargs", "object", "further names for the template"}}};

template <class List>
void add_fields(Json& properties, const List& fields) {
  for (const Field& field : fields) {
    Json schema = Json::object();
    if (*field.type) schema["type"] = field.type;
    schema["description"] = field.help;
    properties[field.name] = schema;
  }
}

Json operation(const char* summary, const Json& body) {
  Json answer = Json::object(), answers = Json::object(), result = Json::object();
  answer["description"] = "done";
  answers["200"] = answer;
  result["summary"] = summary;
  result["responses"] = answers;
  if (body.is_null()) return result;
  Json schema = Json::object(), media = Json::object(), content = Json::object(), request = Json::object();
  schema["type"] = "object";
  schema["properties"] = body;
  media["schema"] = schema;
  content["application/json"] = media;
  request["required"] = true;
  request["content"] = content;
  result["requestBody"] = request;
  return result;
}

}  // namespace

Json openapi_document(const std::string& version) {
  Json completion = Json::object(), chat = Json::object(), text = Json::object(), tokens = Json::object();
  add_fields(completion, kCompletion);
  add_fields(completion, kGeneration);
  add_fields(chat, kChat);
  add_fields(chat, kGeneration);
  add_fields(text, std::array<Field, 1>{{{"prompt", "string", "the text"}}});
  add_fields(tokens, std::array<Field, 1>{{{"tokens", "array", "the tokens"}}});
  Json paths = Json::object();
  const auto add = [&](const char* path, const char* method, const char* summary, const Json& body) {
    Json entry = Json::object();
    entry[method] = operation(summary, body);
    paths[path] = entry;
  };
  add("/v1/completions", "post", "Go on from prompts.", completion);
  add("/v1/chat/completions", "post", "Answer a conversation.", chat);
  add("/v1/models", "get", "The served model.", Json());
  add("/tokenize", "post", "The tokens of a text.", text);
  add("/detokenize", "post", "The text of tokens.", tokens);
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
