#pragma once

#include <string>
#include <utility>

#include "megatron/base/json.h"

namespace megatron {

enum class SftFormat { automatic, chat, prompt_completion };

// A row of an SFT file, whatever its shape was: a conversation, or a prompt and its completion as plain text.
struct SftRow {
  Json messages = Json::array();  // [{"role", "content", …}, …] as chat templates read them
  Json names = Json::object();    // what else the template is given: tools, documents, chat_template_kwargs
  size_t first_learned = 0;       // messages before this one are a prompt, whoever wrote them
  std::string prompt, completion;
  bool is_chat = false;
};

// Reads a row by the first of these keys that it has: messages; conversations (from/value or role/content,
// with an optional system text); prompt and completion, each a text or a list of messages; input and output,
// with an optional instruction. Lists may also be JSON in a text. A ConfigError names `origin` (file and
// line).
SftRow parse_sft_row(const Json& row, const std::string& origin, SftFormat format = SftFormat::automatic);

// The two rows of a preference pair: chosen and rejected, texts or lists of messages, behind an optional
// prompt. Lists without a prompt learn from the first message in which they differ.
std::pair<SftRow, SftRow> parse_preference_row(const Json& row, const std::string& origin);

}  // namespace megatron
