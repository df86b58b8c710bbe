#include "megatron/datasets/sft/conversation.h"

#include <array>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr std::array kFormats = {
    PromptFormat{.name = "default", .mask_prompts = false},
    PromptFormat{.name = "identity",
                 .chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}",
                 .pad_piece = "<unk>"},
    PromptFormat{
        .name = "nemotron-h-aligned",
        .chat_template =
            "{% for message in messages %}{% if message['role'] == 'system' %}{{ '<SPECIAL_10>System\n' + "
            "message['content'].strip() + '\n' }}{% elif message['role'] == 'user' %}{{ '<SPECIAL_11>User\n' "
            "+ message['content'].strip() + '\n' + '<SPECIAL_11>Assistant\n' }}{% elif message['role'] == "
            "'assistant' %}{{ message['content'].strip() + '\n' }}{% endif %}{% endfor %}",
        .pad_piece = "<SPECIAL_233>"},
    PromptFormat{
        .name = "nemotron-nano-v2",
        .chat_template =
            "{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == "
            "'system' %}{{ '<SPECIAL_10>System\n' + content.replace('/think', '').replace('/no_think', "
            "'').strip() + '\n' }}{% elif message['role'] == 'user' %}{{ '<SPECIAL_11>User\n' + "
            "content.replace('/think', '').replace('/no_think', '').strip() + '\n' }}{% elif "
            "message['role'] == 'assistant' %}{{ '<SPECIAL_11>Assistant\n' + content.strip() + "
            "'\n<SPECIAL_12>\n' }}{% endif %}{% endfor %}",
        .pad_piece = "<unk>",
        .assistant_prefix = 3},
};

}  // namespace

std::vector<ChatMessage> parse_messages(const Json& row, const std::string& origin) {
  const Json* list = row.is_object() ? row.find("messages") : nullptr;
  require(list != nullptr && list->is_array(), "{}: has no list 'messages'", origin);
  std::vector<ChatMessage> messages;
  for (const Json& item : list->as_array()) {
    const Json *role = item.is_object() ? item.find("role") : nullptr,
               *content = item.is_object() ? item.find("content") : nullptr;
    require(role && content && role->is_string() && content->is_string(),
            "{}: message {} lacks the strings 'role' and 'content'", origin, messages.size());
    messages.push_back({role->as_string(), content->as_string()});
  }
  require(!messages.empty(), "{}: has no messages", origin);
  return messages;
}

std::vector<std::vector<ChatMessage>> split_conversations(const std::vector<ChatMessage>& messages) {
  std::vector<std::vector<ChatMessage>> conversations;
  for (const ChatMessage& message : messages) {
    if (conversations.empty() || message.role == "system") conversations.emplace_back();
    conversations.back().push_back(message);
  }
  return conversations;
}

const PromptFormat& find_prompt_format(std::string_view name) {
  for (const PromptFormat& format : kFormats)
    if (format.name == name) return format;
  std::string names;
  for (const PromptFormat& format : kFormats)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  throw ConfigError(fmt::format("--sft-tokenizer-prompt-format: '{}', expected one of {}", name, names));
}

EncodedConversation encode_conversation(std::span<const ChatMessage> messages, const PromptFormat& format,
                                        const EncodeMessages& encode, const std::string& origin) {
  EncodedConversation result{encode(messages), {}};
  if (!format.mask_prompts) {
    result.targets = result.tokens;
    return result;
  }
  std::vector<int64_t> joined;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::vector<int64_t> turn = encode(messages.subspan(i, 1));
    joined.insert(joined.end(), turn.begin(), turn.end());
    if (message.role != "assistant") {
      result.targets.resize(joined.size(), kIgnoredLabel);
      continue;
    }
    require(!message.content.empty(), "{}: message {} is an empty answer", origin, i);
    const bool answers = i > 0 && (messages[i - 1].role == "user" || messages[i - 1].role == "tool");
    require(answers, "{}: message {} answers neither a user nor a tool", origin, i);
    for (size_t k = 0; k < turn.size(); ++k)
      result.targets.push_back(static_cast<int64_t>(k) < format.assistant_prefix ? kIgnoredLabel : turn[k]);
  }
  require(joined == result.tokens,
          "{}: its turns one by one give other tokens than together; prompts cannot be told from answers",
          origin);
  return result;
}

JsonRows::JsonRows(const std::string& path) : file_(std::make_shared<MappedFile>(path)) {
  const auto* data = reinterpret_cast<const char*>(file_->bytes().data());
  const size_t size = file_->bytes().size();
  int64_t number = 1;
  for (size_t at = 0; at < size; ++number) {
    const void* newline = std::memchr(data + at, '\n', size - at);
    const size_t end = newline ? static_cast<size_t>(static_cast<const char*>(newline) - data) : size;
    if (std::string_view(data + at, end - at).find_first_not_of(" \t\r") != std::string_view::npos)
      lines_.push_back({at, end, number});
    at = end + 1;
  }
}

std::string JsonRows::origin(int64_t row) const {
  return fmt::format("{} line {}", path(), lines_.at(static_cast<size_t>(row)).number);
}

Json JsonRows::row(int64_t row) const {
  require(row >= 0 && row < size(), "{}: row {} of {}", path(), row, size());
  const Line& line = lines_[static_cast<size_t>(row)];
  return Json::parse(
      {reinterpret_cast<const char*>(file_->bytes().data()) + line.begin, line.end - line.begin},
      origin(row));
}

}  // namespace megatron
