#include "megatron/server/chat_prompt.h"

#include "megatron/server/api_error.h"

namespace megatron {
namespace {

// Content in parts becomes one text, as most templates expect it.
Json plain_content(const Json& content) {
  if (!content.is_array()) {
    if (!content.is_string() && !content.is_null())
      throw ApiError(400,
                     fmt::format("messages: content is {}, expected a string or parts", content.type_name()),
                     "messages");
    return content;
  }
  std::string text;
  for (const Json& part : content.as_array()) {
    const Json *type = part.find("type"), *own = part.find("text");
    if (type && *type != Json("text") && *type != Json("input_text"))
      throw ApiError(400,
                     fmt::format("messages: parts of type {} are not supported; send text", type->dump()),
                     "messages");
    if (!own || !own->is_string())
      throw ApiError(400, "messages: a part of the content has no text", "messages");
    text += (text.empty() ? "" : "\n") + own->as_string();
  }
  return text;
}

// OpenAI sends arguments as text, templates expect a value.
Json plain_message(const Json& message) {
  if (!message.is_object()) throw ApiError(400, "messages: expected objects", "messages");
  const Json* role = message.find("role");
  if (!role || !role->is_string()) throw ApiError(400, "messages: a message has no role", "messages");
  Json plain = message;
  if (const Json* content = message.find("content")) plain["content"] = plain_content(*content);
  Json* calls = message.contains("tool_calls") ? &plain["tool_calls"] : nullptr;
  if (!calls || !calls->is_array()) return plain;
  for (Json& call : calls->as_array()) {
    if (!call.is_object() || !call.contains("function")) continue;
    Json& function = call["function"];
    if (!function.is_object() || !function.contains("arguments")) continue;
    Json& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    try {
      arguments = Json::parse(arguments.as_string(), "arguments");
    } catch (const Error& error) {
      throw ApiError(400, fmt::format("messages: tool_calls: {}", error.what()), "messages");
    }
  }
  return plain;
}

std::vector<Tool> read_tools(const Json& list) {
  std::vector<Tool> tools;
  if (!list.is_array()) throw ApiError(400, "tools: expected an array", "tools");
  for (const Json& one : list.as_array()) {
    const Json* function = one.find("function");
    const Json* name = function ? function->find("name") : nullptr;
    if (!name || !name->is_string() || name->as_string().empty())
      throw ApiError(400, "tools: expected {\"type\": \"function\", \"function\": {\"name\", …}}", "tools");
    const Json* parameters = function->find("parameters");
    Json schema = Json::object();
    schema["type"] = "object";
    tools.push_back({name->as_string(), parameters && !parameters->is_null() ? *parameters : schema});
  }
  return tools;
}

// Ends the text behind the last message's own, so that the model goes on with it.
void cut_behind_last_message(std::string& text, const Json& messages) {
  const Json* content = messages[messages.size() - 1].find("content");
  const std::string last = content && content->is_string() ? content->as_string() : "";
  const size_t at = text.rfind(last);
  if (last.empty() || at == std::string::npos)
    throw ApiError(400, "continue_final_message: the template does not show the last message",
                   "continue_final_message");
  text.erase(at + last.size());
}

}  // namespace

std::string ChatPrompts::render(const Json& conversation, bool with_tools) const {
  if (model_.templates.sources.empty())
    throw ApiError(400, fmt::format("{} has no chat template; use /v1/completions", model_.name), "messages");
  try {
    const std::string& source = model_.templates.choose("", with_tools);
    const chat::ChatTemplate* parsed = nullptr;
    {
      const std::lock_guard lock(mutex_);
      auto found = parsed_.find(&source);
      if (found == parsed_.end()) found = parsed_.emplace(&source, chat::ChatTemplate(source)).first;
      parsed = &found->second;
    }
    return parsed->render(chat::chat_names(model_.templates.special_tokens, conversation)).text;
  } catch (const Error& error) {
    throw ApiError(400, fmt::format("messages: {}", error.what()), "messages");
  }
}

ChatPrompt ChatPrompts::read(Fields& fields, bool without_tools) const {
  const Json& messages = fields.required("messages");
  if (!messages.is_array() || messages.size() == 0)
    throw ApiError(400, "messages: expected an array with at least one message", "messages");
  Json conversation = Json::object();
  if (const Json* names = fields.find("chat_template_kwargs")) {
    if (!names->is_object())
      throw ApiError(400, "chat_template_kwargs: expected an object", "chat_template_kwargs");
    for (const auto& [name, value] : names->as_object()) conversation[name] = value;
  }
  if (const Json* effort = fields.find("reasoning_effort")) conversation["reasoning_effort"] = *effort;
  if (const Json* documents = fields.find("documents")) conversation["documents"] = *documents;
  Json plain = Json::array();
  for (const Json& message : messages.as_array()) plain.push_back(plain_message(message));
  conversation["messages"] = plain;
  ChatPrompt prompt;
  if (const Json* tools = fields.find("tools"); tools && *tools != Json::array()) {
    prompt.tools = read_tools(*tools);
    if (!without_tools) conversation["tools"] = *tools;
  }
  const bool continues = fields.flag("continue_final_message", false);
  conversation["add_generation_prompt"] = fields.flag("add_generation_prompt", !continues);
  prompt.text = render(conversation, !prompt.tools.empty() && !without_tools);
  if (continues) cut_behind_last_message(prompt.text, plain);
  prompt.tokens = model_.encode(prompt.text, fields.flag("add_special_tokens", false));
  return prompt;
}

}  // namespace megatron
