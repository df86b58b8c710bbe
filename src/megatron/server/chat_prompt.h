#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/server/fields.h"
#include "megatron/server/served_model.h"
#include "megatron/server/tool_calls.h"

namespace megatron {

// A conversation as the model reads it.
struct ChatPrompt {
  std::string text;
  std::vector<int64_t> tokens;
  std::vector<Tool> tools;  // that the request offers
};

// Writes conversations by a model's own chat templates. Any number of threads may use one.
class ChatPrompts {
 public:
  explicit ChatPrompts(const ServedModel& model) : model_(model) {}

  // Reads messages, tools and what the template is given besides. With `without_tools` the tools are read but
  // not shown to the model. An ApiError where a message or the template is at fault.
  ChatPrompt read(Fields& fields, bool without_tools) const;

 private:
  std::string render(const Json& conversation, bool with_tools) const;

  const ServedModel& model_;
  mutable std::mutex mutex_;
  mutable std::map<const std::string*, chat::ChatTemplate> parsed_;
};

}  // namespace megatron
