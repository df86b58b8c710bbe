#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/inference/constraint/compile.h"

namespace megatron {

// How a model writes calls of tools.
enum class ToolFormat {
  none,
  hermes,   // <tool_call>{"name", "arguments"}</tool_call>, one behind the other: Hermes, Qwen
  llama3,   // {"name", "parameters"}; …, all of the answer, behind <|python_tag|> or not
  mistral,  // [TOOL_CALLS] and an array of {"name", "arguments"}, or name{…}
};

// By name: hermes, llama3_json, mistral, none. A ConfigError names these.
ToolFormat tool_format(std::string_view name);
// By the words in a model's chat template.
ToolFormat tool_format_of_template(std::string_view source);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

// The calls in a text of nothing else: objects of JSON one behind the other, in an array, or behind names.
// None where it is something else.
std::optional<std::vector<ToolCall>> read_tool_calls(std::string_view text);

// A tool that a request offers.
struct Tool {
  std::string name;
  Json parameters;  // a JSON schema
};

// What an answer that has to call one of these tools may look like.
FramedSchemas tool_call_texts(ToolFormat format, const std::vector<Tool>& tools, bool several);

}  // namespace megatron
