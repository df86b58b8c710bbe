// Filters of texts.
#include <algorithm>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/percent_format.h"
#include "megatron/tokenizers/chat/split.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/text_methods.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

// The method of that name of the input's text.
Value by_method(Runtime& runtime, const Value& input, std::string_view name, Arguments arguments) {
  Value method;
  text_method(soft_text(runtime, input), name, method);
  return method.object().call(runtime, std::move(arguments));
}

Value upper(Runtime& runtime, const Value& input, Arguments& arguments) {
  return by_method(runtime, input, "upper", std::move(arguments));
}
Value lower(Runtime& runtime, const Value& input, Arguments& arguments) {
  return by_method(runtime, input, "lower", std::move(arguments));
}
Value capitalize(Runtime& runtime, const Value& input, Arguments& arguments) {
  return by_method(runtime, input, "capitalize", std::move(arguments));
}
Value trim(Runtime& runtime, const Value& input, Arguments& arguments) {
  return by_method(runtime, input, "strip", std::move(arguments));
}

Value center(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "center", {"width"});
  return by_method(runtime, input, "center", {{bound.value_or(0, Value(80))}, {}});
}

// Words begin behind whitespace and some kinds of brackets, unlike those of str.title.
Value title(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "title", {});
  const std::string text = to_text(runtime, input);
  std::string out, word;
  auto close = [&] {
    if (word.empty()) return;
    const size_t first = byte_offset(word, 1);
    out += change_case(std::string_view(word).substr(0, first), Case::upper);
    out += change_case(std::string_view(word).substr(first), Case::lower);
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(text, at);
    const bool between =
        is_space(point) || point == '-' || point == '(' || point == '{' || point == '[' || point == '<';
    if (between) close();
    (between ? out : word) += text.substr(begin, at - begin);
  }
  close();
  return runtime.text(std::move(out), input.markup());
}

Value replace(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "replace", {"old", "new", "count"}, 2);
  return runtime.text(replaced(runtime, to_text(runtime, input), to_text(runtime, bound[0]),
                               to_text(runtime, bound[1]), bound.has_value(2) ? to_integer(bound[2]) : -1));
}

Value string(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "string", {});
  return soft_text(runtime, input);
}
Value safe(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "safe", {});
  return runtime.text(to_text(runtime, input), true);
}
Value escape(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "escape", {});
  return input.markup() ? input : runtime.text(escape_html(to_text(runtime, input)), true);
}
Value forceescape(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "forceescape", {});
  return runtime.text(escape_html(to_text(runtime, input)), true);
}

Value default_value(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "default", {"default_value", "boolean"});
  if (input.is_undefined() || (bound.truth_or(1, false) && !truth(input)))
    return bound.value_or(0, runtime.text(""));
  return input;
}

Value format(Runtime& runtime, const Value& input, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    fault("can't handle positional and keyword arguments at the same time");
  ValuePairs pairs;
  for (auto& [name, value] : arguments.named) pairs.emplace_back(runtime.text(name), value);
  return percent_format(
      runtime, soft_text(runtime, input),
      pairs.empty() ? runtime.tuple(std::move(arguments.positional)) : runtime.dict(std::move(pairs)));
}

Value indent(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "indent", {"width", "first", "blank"});
  if (!input.is_text()) {
    if (input.is_undefined()) fault("{}", input.undefined().message);
    fault("indent wants a str, got '{}'", type_name(input));
  }
  TextBuilder space(runtime.budget), out(runtime.budget);
  if (bound.has(0) && bound[0].is_text()) {
    space.add(bound[0].text());
  } else {
    space.repeat(" ", bound.integer_or(0, 4));
  }
  const std::string text = input.text() + "\n";
  const bool blank = bound.truth_or(2, false);
  bool first_line = true;
  if (bound.truth_or(1, false)) out.add(space.text());
  for (std::string_view line : split_lines(runtime.budget, text, false)) {
    if (!first_line) {
      out.add('\n');
      if (blank || !line.empty()) out.add(space.text());
    }
    out.add(line);
    first_line = false;
  }
  return runtime.text(out.take(), input.markup());
}

Value truncate(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const Value end = bound.has(2) ? bound[2] : runtime.text("...");
  const int64_t limit = bound.integer_or(0, 255), leeway = bound.has_value(3) ? to_integer(bound[3]) : 5;
  if (limit < length(end)) fault("expected length >= {}, got {}", length(end), limit);
  if (leeway < 0) fault("expected leeway >= 0, got {}", leeway);
  if (length(input) - leeway <= limit) return input;
  if (!input.is_text() || !end.is_text()) fault("truncate wants a str, got '{}'", type_name(input));
  std::string_view kept =
      std::string_view(input.text()).substr(0, byte_offset(input.text(), limit - length(end)));
  if (!bound.truth_or(1, false)) {
    const size_t space = kept.rfind(' ');
    if (space != std::string_view::npos) kept = kept.substr(0, space);
  }
  return runtime.text(std::string(kept) + end.text(), input.markup());
}

Value wordcount(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "wordcount", {});
  const std::string text = to_text(runtime, input);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t point = next_code_point(text, at);
    const bool word = point == '_' || is_alnum(point);
    words += word && !inside;
    inside = word;
  }
  return Value(words);
}

std::string url_quoted(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' ||
                       c == '~' || (c == '/' && !query);
    if (plain && !(c & 0x80)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

Value urlencode(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "urlencode", {});
  if (input.is_text() || !is_iterable(input)) return runtime.text(url_quoted(to_text(runtime, input), false));
  TextBuilder out(runtime.budget);
  auto add = [&](const Value& key, const Value& value) {
    if (!out.text().empty()) out.add('&');
    out.add(url_quoted(to_text(runtime, key), true) + "=" + url_quoted(to_text(runtime, value), true));
  };
  if (input.is_dict()) {
    for (const auto& [key, value] : input.pairs()) add(key, value);
  } else {
    for (const Value& pair : to_values(runtime, input)) {
      const Values both = to_values(runtime, pair);
      if (both.size() != 2) fault("urlencode wants pairs");
      add(both[0], both[1]);
    }
  }
  return runtime.text(out.take());
}

Value tojson(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = bound.truth_or(0, false), .sort_keys = bound.truth_or(3, false)};
  if (bound.has_value(1)) {
    style.lines = true;
    style.item_separator = ",";
    if (bound[1].is_text()) {
      style.indent = bound[1].text();
    } else {
      style.indent =
          std::string(static_cast<size_t>(std::clamp<int64_t>(to_integer(bound[1]), 0, 1000)), ' ');
    }
  }
  if (bound.has_value(2)) {
    const Values separators = to_values(runtime, bound[2]);
    if (separators.size() != 2 || !separators[0].is_text() || !separators[1].is_text())
      fault("separators are two texts");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return runtime.text(to_json(runtime, input, style));
}

constexpr NamedFilter kFilters[] = {
    {"capitalize", capitalize},
    {"center", center},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"forceescape", forceescape},
    {"format", format},
    {"indent", indent},
    {"lower", lower},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", upper},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

std::span<const NamedFilter> text_filters() { return kFilters; }

Value soft_text(Runtime& runtime, const Value& value) {
  return value.is_text() ? value : runtime.text(to_text(runtime, value));
}

FilterFunction find_filter(std::string_view name) {
  for (const auto& table : {text_filters(), number_filters(), sequence_filters(), selecting_filters()})
    for (const NamedFilter& filter : table)
      if (filter.name == name) return filter.function;
  return nullptr;
}

}  // namespace megatron::chat
