#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/chat/interpreter.h"
#include "megatron/tokenizers/chat/limits.h"
#include "megatron/tokenizers/chat/template_error.h"

namespace megatron::chat {

struct ChatOptions {
  ChatLimits limits;
  std::optional<std::chrono::system_clock::time_point> now;  // of strftime_now; not given: the current time
};

// A rendered conversation, and the bytes of it that `generation` blocks wrote.
struct ChatRendering {
  std::string text;
  std::vector<TextSpan> generations;
};

// A chat template of Hugging Face: Jinja in the sandbox and with the extensions that transformers gives it.
// Rendering changes nothing, so several threads may share one.
class ChatTemplate {
 public:
  // A TemplateError where the source is malformed.
  explicit ChatTemplate(std::string_view source, const ChatLimits& limits = {});

  // Renders with the members of `names`, an object: messages, tools, add_generation_prompt, bos_token and
  // whatever else the template reads. A TemplateError where the template raises or goes beyond its limits.
  ChatRendering render(const Json& names, const ChatOptions& options = {}) const;

  // Whether the source has a generation block, so that a rendering tells what the assistant wrote.
  bool has_generation() const { return has_generation_; }

 private:
  std::shared_ptr<const Block> block_;
  bool has_generation_ = false;
};

}  // namespace megatron::chat
