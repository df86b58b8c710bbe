#include "megatron/tokenizers/chat/brace_format.h"

#include <algorithm>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/number_format.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

class BraceFormat {
 public:
  BraceFormat(Runtime& runtime, const Arguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  // Fields inside a field's specification are the second and last level.
  std::string run(std::string_view format, int level) {
    if (level > 2) fault("Max string recursion exceeded");
    TextBuilder out(runtime_.budget);
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      if (c != '{' && c != '}') {
        const size_t end = std::min(format.find_first_of("{}", at), format.size());
        out.add(format.substr(at, end - at));
        at = end;
      } else if (at + 1 < format.size() && format[at + 1] == c) {
        out.add(c);
        at += 2;
      } else if (c == '}') {
        fault("Single '}}' encountered in format string");
      } else {
        const size_t end = field_end(format, at + 1);
        out.add(field(format.substr(at + 1, end - at - 1), level));
        at = end + 1;
      }
    }
    return out.take();
  }

 private:
  static size_t field_end(std::string_view format, size_t at) {
    for (int depth = 1; at < format.size(); ++at) {
      if (format[at] == '{') ++depth;
      if (format[at] == '}' && --depth == 0) return at;
    }
    fault("expected '}}' before end of string");
  }

  std::string field(std::string_view text, int level) {
    runtime_.budget.step();
    size_t name_end = 0;
    for (bool bracket = false; name_end < text.size(); ++name_end) {
      if (text[name_end] == '[') bracket = true;
      if (text[name_end] == ']') bracket = false;
      if (!bracket && (text[name_end] == '!' || text[name_end] == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    text.remove_prefix(name_end);
    if (text.starts_with('!')) {
      if (text.size() < 2 || (text.size() > 2 && text[2] != ':'))
        fault("a conversion is one of !r, !s and !a");
      if (text[1] == 'r' || text[1] == 'a') {
        value = runtime_.text(to_repr(runtime_, value));
      } else if (text[1] == 's') {
        value = runtime_.text(to_text(runtime_, value));
      } else {
        fault("Unknown conversion specifier '{}'", text[1]);
      }
      text.remove_prefix(2);
    }
    if (text.starts_with(':')) text.remove_prefix(1);
    const std::string spec = run(text, level + 1);
    return spec.empty() ? to_text(runtime_, value) : format_value(runtime_, value, parse_format_spec(spec));
  }

  Value lookup(std::string_view name) {
    size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(name.substr(0, end));
    while (end < name.size()) {
      const bool item = name[end] == '[';
      const size_t begin = end + 1;
      if (item) {
        end = name.find(']', begin);
        if (end == std::string_view::npos) fault("Missing ']' in format string");
      } else {
        end = std::min(name.find_first_of(".[", begin), name.size());
      }
      const std::string_view part = name.substr(begin, end - begin);
      if (part.empty()) fault("Empty attribute in format string");
      value = !item             ? get_attribute(runtime_, value, part)
              : is_number(part) ? get_item(runtime_, value, Value(int64_t{std::stoll(std::string(part))}))
                                : get_item(runtime_, value, runtime_.text(std::string(part)));
      if (item && ++end < name.size() && name[end] != '.' && name[end] != '[')
        fault("Only '.' or '[' may follow ']' in format field specifier");
    }
    return value;
  }

  Value first(std::string_view name) {
    if (name.empty() || is_number(name)) {
      if (name.empty() ? numbered_ == 2 : numbered_ == 1)
        fault("cannot switch between manual field specification and automatic field numbering");
      numbered_ = name.empty() ? 1 : 2;
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(std::stoll(std::string(name)));
      if (index >= arguments_.positional.size())
        fault("Replacement index {} out of range for positional args tuple", index);
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    fault("the field '{}' of a format is not given", name);
  }

  Runtime& runtime_;
  const Arguments& arguments_;
  size_t next_ = 0;
  int numbered_ = 0;  // 1: automatically, 2: by hand
};

}  // namespace

std::string brace_format(Runtime& runtime, std::string_view format, const Arguments& arguments) {
  return BraceFormat(runtime, arguments).run(format, 1);
}

}  // namespace megatron::chat
