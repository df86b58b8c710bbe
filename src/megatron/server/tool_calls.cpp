#include "megatron/server/tool_calls.h"

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The length of the object or array with which a text begins; 0 where none ends in it.
size_t json_length(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth <= 0) {
      return i + 1;
    }
  }
  return 0;
}

std::optional<Json> parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Error&) {
    return {};
  }
}

std::optional<ToolCall> call_of(const Json& object) {
  const Json* name = object.find("name");
  if (!name || !name->is_string()) return {};
  const Json* arguments = object.find("arguments");
  if (!arguments) arguments = object.find("parameters");
  if (!arguments) return ToolCall{name->as_string(), "{}"};
  return ToolCall{name->as_string(), arguments->is_string() ? arguments->as_string() : arguments->dump()};
}

// name{…} or name[ARGS]{…}
std::optional<ToolCall> named_call(std::string_view& text) {
  const size_t brace = text.find('{');
  if (brace == std::string_view::npos || brace == 0) return {};
  std::string_view name = trimmed(text.substr(0, brace));
  if (name.ends_with("[ARGS]")) name.remove_suffix(6);
  if (name.empty() || name.find_first_of(" \n\"{}[]") != std::string_view::npos) return {};
  const size_t length = json_length(text.substr(brace));
  if (length == 0 || !parse_json(text.substr(brace, length))) return {};
  ToolCall call{std::string(name), std::string(text.substr(brace, length))};
  text.remove_prefix(brace + length);
  return call;
}

}  // namespace

ToolFormat tool_format(std::string_view name) {
  if (name == "none") return ToolFormat::none;
  if (name == "hermes") return ToolFormat::hermes;
  if (name == "llama3_json") return ToolFormat::llama3;
  if (name == "mistral") return ToolFormat::mistral;
  refuse("serve: --tool-call-parser {} is not known; give auto, hermes, llama3_json, mistral or none", name);
}

ToolFormat tool_format_of_template(std::string_view source) {
  const auto has = [&](std::string_view word) { return source.find(word) != std::string_view::npos; };
  if (has("[TOOL_CALLS]")) return ToolFormat::mistral;
  if (has("<tool_call>")) return ToolFormat::hermes;
  if (has("<|python_tag|>") || has("\"parameters\"")) return ToolFormat::llama3;
  return ToolFormat::none;
}

std::optional<std::vector<ToolCall>> read_tool_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  while (!(text = trimmed(text)).empty()) {
    if (text[0] == ';' || text[0] == ',') {
      text.remove_prefix(1);
      continue;
    }
    for (std::string_view word : {"[TOOL_CALLS]", "<|python_tag|>"})
      if (text.starts_with(word)) text.remove_prefix(word.size());
    if (text.empty()) break;
    if (text[0] != '{' && text[0] != '[') {
      const auto call = named_call(text);
      if (!call) return {};
      calls.push_back(*call);
      continue;
    }
    const size_t length = json_length(text);
    const auto value = length > 0 ? parse_json(text.substr(0, length)) : std::nullopt;
    if (!value) return {};
    for (const Json& one : value->is_array() ? value->as_array() : Json::Array{*value}) {
      const auto call = call_of(one);
      if (!call) return {};
      calls.push_back(*call);
    }
    text.remove_prefix(length);
  }
  if (calls.empty()) return {};
  return calls;
}

FramedSchemas tool_call_texts(ToolFormat format, const std::vector<Tool>& tools, bool several) {
  FramedSchemas texts;
  const bool hermes = format == ToolFormat::hermes, llama = format == ToolFormat::llama3;
  if (!hermes && !llama) texts = {"[", ", ", "]", {}};
  if (several && hermes) texts.separator = "\n";
  if (several && llama) texts.separator = "; ";
  if (!several) texts.separator.clear();
  for (const Tool& tool : tools) {
    const std::string begin =
        fmt::format("{{\"name\": {}, \"{}\": ", Json(tool.name).dump(), llama ? "parameters" : "arguments");
    texts.choices.push_back(
        {(hermes ? "<tool_call>\n" : "") + begin, tool.parameters, hermes ? "}\n</tool_call>" : "}"});
  }
  return texts;
}

}  // namespace megatron
