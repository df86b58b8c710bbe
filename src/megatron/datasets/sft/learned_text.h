#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/datasets/sft/sft_row.h"
#include "megatron/tokenizers/chat/chat_template.h"

namespace megatron {

// A text, and the bytes of it that a model learns to write.
struct LearnedText {
  std::string text;
  std::vector<chat::TextSpan> learned;  // in order, apart from each other, none empty
  std::vector<size_t> cuts;             // bytes at which it is encoded in parts: where a completion begins
};

enum class LossMode {
  assistant,  // every answer, or the completion
  last_turn,  // the last answer
  full,       // everything
};

// Renders a conversation with `chat_template`. Answers are what its generation blocks wrote. A template
// without such blocks is rendered up to each answer: an answer begins behind messages [0, i) with the
// generation prompt, and ends behind messages [0, i], each measured by what it has in common with the whole
// text. An answer that is not found there (a template that rewrites earlier turns) is a ConfigError that
// names it.
LearnedText render_conversation(const SftRow& row, const chat::ChatTemplate& chat_template,
                                const Json& special_tokens, LossMode mode, const std::string& origin,
                                const chat::ChatOptions& options = {});

// Fills a prompt and its completion into a form such as "{input} {output}", whose last part is {output}.
LearnedText fill_prompt(const SftRow& row, std::string_view form, LossMode mode, const std::string& origin);

}  // namespace megatron
