#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/base/mapped_file.h"
#include "megatron/nn/batch.h"

namespace megatron {

struct ChatMessage {
  std::string role, content;
};

// The messages of a row {"messages": [{"role", "content"}, …]}; an Error names `origin`.
std::vector<ChatMessage> parse_messages(const Json& row, const std::string& origin);
// A row may hold several conversations: each system message begins one.
std::vector<std::vector<ChatMessage>> split_conversations(const std::vector<ChatMessage>& messages);

// A way of Megatron-LM to write conversations: the template, the piece that pads, what of an answer is not
// trained on.
struct PromptFormat {
  std::string_view name;
  std::string_view chat_template;  // Jinja; "" for the tokenizer's own
  std::string_view pad_piece;      // "" for the tokenizer's pad, or its eos
  int64_t assistant_prefix = 0;    // tokens of an answer that only introduce it
  bool mask_prompts = true;        // whether answers alone are trained on
};
// "default", "identity", "nemotron-h-aligned" or "nemotron-nano-v2"; a ConfigError lists them.
const PromptFormat& find_prompt_format(std::string_view name);

// Messages as tokens, rendered by a template without added special tokens.
using EncodeMessages = std::function<std::vector<int64_t>(std::span<const ChatMessage>)>;

struct EncodedConversation {
  std::vector<int64_t> tokens, targets;  // targets of prompts are kIgnoredLabel
};
// An Error where a turn cannot be told from the others in the tokens, or an answer is empty or answers
// nobody.
EncodedConversation encode_conversation(std::span<const ChatMessage> messages, const PromptFormat& format,
                                        const EncodeMessages& encode, const std::string& origin);

// Rows of a JSON lines file, found when it is opened and parsed when they are read; blank lines are none.
// Safe to share between threads.
class JsonRows {
 public:
  explicit JsonRows(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  std::string origin(int64_t row) const;
  Json row(int64_t row) const;

 private:
  struct Line {
    size_t begin, end;
    int64_t number;
  };
  std::shared_ptr<MappedFile> file_;
  std::vector<Line> lines_;
};

}  // namespace megatron
