#pragma once

#include <string>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// Python's format specification: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // one of < > ^ =, 0 where it is not given
  char sign = 0;   // one of + - and blank, 0 where it is not given
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = 0;
  int64_t precision = -1;  // -1: not given
  char type = 0;
};
FormatSpec parse_format_spec(std::string_view text);

// format(value, spec) of Python for the kinds that have one.
std::string format_value(Runtime& runtime, const Value& value, const FormatSpec& spec);
std::string format_real(Runtime& runtime, double value, FormatSpec spec);
std::string format_integer(Runtime& runtime, int64_t value, const FormatSpec& spec);
std::string format_text(Runtime& runtime, std::string_view text, const FormatSpec& spec);

}  // namespace megatron::chat
