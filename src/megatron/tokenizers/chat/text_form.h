#pragma once

#include <string>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// repr() of a Python float: the shortest digits that read back the same.
std::string float_repr(double value);

// repr() of a Python str.
std::string text_repr(std::string_view bytes);

// str(value) and repr(value) of Python.
std::string to_text(Runtime& runtime, const Value& value);
std::string to_repr(Runtime& runtime, const Value& value);
void append_text(Runtime& runtime, TextBuilder& out, const Value& value);

// json.dumps with the options that the `tojson` filter of chat templates takes.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool lines = false;  // one item a line, behind `indent` for each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace megatron::chat
