#include "megatron/datasets/sft/sft_row.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {
namespace {

const Json* find(const Json& row, std::string_view key) {
  const Json* value = row.find(key);
  return value && !value->is_null() ? value : nullptr;
}

const std::string& text_of(const Json& value, std::string_view key, const std::string& origin) {
  if (!value.is_string())
    throw ConfigError(fmt::format("{}: {} is {}, expected a text", origin, key, value.type_name()));
  return value.as_string();
}

// Datasets that cannot hold nested columns store lists as JSON in a text.
Json list_of(const Json& value, std::string_view key, const std::string& origin) {
  Json list = value.is_string() ? Json::parse(value.as_string(), fmt::format("{}: {}", origin, key)) : value;
  if (!list.is_array())
    throw ConfigError(fmt::format("{}: {} is {}, expected a list", origin, key, list.type_name()));
  return list;
}

// The roles of ShareGPT and its relatives under the names that templates know.
std::string common_role(const std::string& role) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"human", "user"},     {"gpt", "assistant"},      {"chatgpt", "assistant"},     {"bing", "assistant"},
      {"bard", "assistant"}, {"model", "assistant"},    {"bot", "assistant"},         {"observation", "tool"},
      {"function", "tool"},  {"tool_response", "tool"}, {"function_response", "tool"}};
  for (const auto& [theirs, ours] : kNames)
    if (role == theirs) return std::string(ours);
  return role;
}

Json message_of(const Json& entry, const std::string& origin, size_t index) {
  const std::string place = fmt::format("{}: message {}", origin, index);
  if (!entry.is_object())
    throw ConfigError(fmt::format("{} is {}, expected an object", place, entry.type_name()));
  const Json *from = find(entry, "from"), *value = entry.find("value");
  Json message = Json::object();
  if (from && !entry.contains("role")) {
    message["role"] = common_role(text_of(*from, "from", place));
    if (value) message["content"] = *value;
    for (const auto& [name, member] : entry.as_object())
      if (name != "from" && name != "value") message[name] = member;
  } else {
    message = entry;
  }
  const Json* role = message.find("role");
  if (!role || !role->is_string()) throw ConfigError(fmt::format("{} has no role", place));
  if (!message.contains("content") && !message.contains("tool_calls"))
    throw ConfigError(fmt::format("{} has neither content nor tool_calls", place));
  return message;
}

void add_messages(SftRow& result, const Json& list, const std::string& origin) {
  for (const Json& entry : list.as_array())
    result.messages.push_back(message_of(entry, origin, result.messages.size()));
}

void add_system(SftRow& result, const Json& row, const std::string& origin) {
  const Json* system = find(row, "system");
  if (!system || text_of(*system, "system", origin).empty()) return;
  Json message = Json::object();
  message["role"] = "system";
  message["content"] = *system;
  result.messages.push_back(message);
}

void add_names(SftRow& result, const Json& row, const std::string& origin) {
  for (const char* key : {"tools", "documents"})
    if (const Json* value = find(row, key)) {
      Json list = list_of(*value, key, origin);
      if (list.size() > 0) result.names[key] = std::move(list);
    }
  if (const Json* more = find(row, "chat_template_kwargs")) {
    if (!more->is_object())
      throw ConfigError(
          fmt::format("{}: chat_template_kwargs is {}, expected an object", origin, more->type_name()));
    for (const auto& [name, value] : more->as_object()) result.names[name] = value;
  }
}

// A prompt and what follows it: both lists of messages, or both texts.
void add_prompt_and_answer(SftRow& result, const Json& prompt, const Json& answer,
                           std::string_view answer_key, const std::string& origin) {
  if (prompt.is_array() || answer.is_array()) {
    result.is_chat = true;
    if (prompt.is_array()) {
      add_messages(result, prompt, origin);
    } else {
      Json message = Json::object();
      message["role"] = "user";
      message["content"] = text_of(prompt, "prompt", origin);
      result.messages.push_back(message);
    }
    result.first_learned = result.messages.size();
    add_messages(result, list_of(answer, answer_key, origin), origin);
    return;
  }
  result.prompt = text_of(prompt, "prompt", origin);
  result.completion = text_of(answer, answer_key, origin);
}

void require_format(const SftRow& row, SftFormat format, const std::string& origin) {
  if (format == SftFormat::automatic || (format == SftFormat::chat) == row.is_chat) return;
  throw ConfigError(fmt::format("{}: the row is {}, expected {}; give another --sft-format", origin,
                                row.is_chat ? "a conversation" : "a prompt and its completion",
                                row.is_chat ? "a prompt and its completion" : "a conversation"));
}

}  // namespace

SftRow parse_sft_row(const Json& row, const std::string& origin, SftFormat format) {
  if (!row.is_object())
    throw ConfigError(fmt::format("{}: the row is {}, expected an object", origin, row.type_name()));
  SftRow result;
  add_names(result, row, origin);
  if (const Json* messages = find(row, "messages")) {
    result.is_chat = true;
    add_messages(result, list_of(*messages, "messages", origin), origin);
  } else if (const Json* turns = find(row, "conversations")) {
    result.is_chat = true;
    add_system(result, row, origin);
    add_messages(result, list_of(*turns, "conversations", origin), origin);
  } else if (const Json* prompt = find(row, "prompt"), *completion = find(row, "completion");
             prompt && completion) {
    add_prompt_and_answer(result, *prompt, *completion, "completion", origin);
  } else if (const Json* input = find(row, "input"), *output = find(row, "output");
             (input || find(row, "instruction")) && output) {
    if (const Json* instruction = find(row, "instruction"))
      result.prompt = text_of(*instruction, "instruction", origin);
    if (input && !text_of(*input, "input", origin).empty())
      result.prompt += (result.prompt.empty() ? "" : "\n\n") + input->as_string();
    result.completion = text_of(*output, "output", origin);
  } else {
    throw ConfigError(
        fmt::format("{}: no messages, conversations, prompt and completion, or input and output", origin));
  }
  if (result.is_chat && result.messages.size() == 0)
    throw ConfigError(fmt::format("{}: the conversation is empty", origin));
  require_format(result, format, origin);
  return result;
}

std::pair<SftRow, SftRow> parse_preference_row(const Json& row, const std::string& origin) {
  const Json* chosen = row.is_object() ? find(row, "chosen") : nullptr;
  const Json* rejected = row.is_object() ? find(row, "rejected") : nullptr;
  if (!chosen || !rejected) throw ConfigError(fmt::format("{}: no chosen or no rejected answer", origin));
  const Json* prompt = find(row, "prompt");
  auto one = [&](const Json& answer, const char* key) {
    SftRow result;
    add_names(result, row, origin);
    if (prompt) {
      add_prompt_and_answer(result, *prompt, answer, key, origin);
    } else if (answer.is_array()) {
      result.is_chat = true;
      add_messages(result, answer, origin);
    } else {
      result.completion = text_of(answer, key, origin);
    }
    return result;
  };
  std::pair<SftRow, SftRow> pair{one(*chosen, "chosen"), one(*rejected, "rejected")};
  if (pair.first.is_chat != pair.second.is_chat)
    throw ConfigError(fmt::format("{}: one answer is a text, the other a list of messages", origin));
  if (!prompt && pair.first.is_chat) {
    const auto &a = pair.first.messages.as_array(), &b = pair.second.messages.as_array();
    const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    pair.first.first_learned = pair.second.first_learned = static_cast<size_t>(differ - a.begin());
  }
  return pair;
}

}  // namespace megatron
