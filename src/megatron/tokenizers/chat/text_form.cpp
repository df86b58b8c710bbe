#include "megatron/tokenizers/chat/text_form.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

void append_hex(std::string& out, char32_t point) {
  if (point < 0x100) {
    out += fmt::format("\\x{:02x}", uint32_t{point});
  } else if (point < 0x10000) {
    out += fmt::format("\\u{:04x}", uint32_t{point});
  } else {
    out += fmt::format("\\U{:08x}", uint32_t{point});
  }
}

void append_repr(Runtime& runtime, TextBuilder& out, const Value& value);

void append_items(Runtime& runtime, TextBuilder& out, const Values& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(", ");
    append_repr(runtime, out, items[i]);
  }
}

void append_repr(Runtime& runtime, TextBuilder& out, const Value& value) {
  runtime.budget.step();
  switch (value.kind()) {
    case Value::Kind::none:
      return out.add("None");
    case Value::Kind::undefined:
      return out.add("Undefined");
    case Value::Kind::boolean:
      return out.add(value.boolean() ? "True" : "False");
    case Value::Kind::integer:
      return out.add(std::to_string(value.integer()));
    case Value::Kind::real:
      return out.add(float_repr(value.real()));
    case Value::Kind::text:
      if (value.markup()) return out.add("Markup(" + text_repr(value.text()) + ")");
      return out.add(text_repr(value.text()));
    case Value::Kind::list:
      out.add('[');
      append_items(runtime, out, value.items());
      return out.add(']');
    case Value::Kind::tuple:
      out.add('(');
      append_items(runtime, out, value.items());
      return out.add(value.items().size() == 1 ? ",)" : ")");
    case Value::Kind::dict:
      out.add('{');
      for (size_t i = 0; i < value.pairs().size(); ++i) {
        if (i > 0) out.add(", ");
        append_repr(runtime, out, value.pairs()[i].first);
        out.add(": ");
        append_repr(runtime, out, value.pairs()[i].second);
      }
      return out.add('}');
    case Value::Kind::object:
      break;
  }
  Level level(runtime.budget);  // a namespace may hold itself
  out.add(value.object().repr(runtime));
}

void append_json_text(TextBuilder& out, std::string_view bytes, bool ensure_ascii) {
  std::string quoted = "\"";
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(bytes, at);
    switch (point) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\f':
        quoted += "\\f";
        break;
      case '\b':
        quoted += "\\b";
        break;
      default:
        if (point < 0x20 || (ensure_ascii && point > 0x7e && point < 0x10000)) {
          if (point == 0x7f) {
            quoted += '\x7f';
          } else {
            quoted += fmt::format("\\u{:04x}", uint32_t{point});
          }
        } else if (ensure_ascii && point >= 0x10000) {
          const uint32_t rest = point - 0x10000;
          quoted += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 | rest >> 10, 0xdc00 | (rest & 0x3ff));
        } else {
          quoted += bytes.substr(begin, at - begin);
        }
    }
  }
  out.add(quoted += '"');
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

std::string json_key(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::text:
      return key.text();
    case Value::Kind::none:
      return "null";
    case Value::Kind::boolean:
      return key.boolean() ? "true" : "false";
    case Value::Kind::integer:
      return std::to_string(key.integer());
    case Value::Kind::real:
      return json_float(key.real());
    default:
      fault("keys must be str, int, float, bool or None, not {}", type_name(key));
  }
}

void append_json(Runtime& runtime, TextBuilder& out, const Value& value, const JsonStyle& style, int depth) {
  runtime.budget.step();
  auto new_line = [&](int levels) {
    if (!style.lines) return;
    out.add('\n');
    out.repeat(style.indent, levels);
  };
  switch (value.kind()) {
    case Value::Kind::none:
      return out.add("null");
    case Value::Kind::boolean:
      return out.add(value.boolean() ? "true" : "false");
    case Value::Kind::integer:
      return out.add(std::to_string(value.integer()));
    case Value::Kind::real:
      return out.add(json_float(value.real()));
    case Value::Kind::text:
      return append_json_text(out, value.text(), style.ensure_ascii);
    case Value::Kind::list:
    case Value::Kind::tuple: {
      const Values& items = value.items();
      if (items.empty()) return out.add("[]");
      out.add('[');
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.add(style.item_separator);
        new_line(depth + 1);
        append_json(runtime, out, items[i], style, depth + 1);
      }
      new_line(depth);
      return out.add(']');
    }
    case Value::Kind::dict: {
      ValuePairs pairs = value.pairs();
      if (pairs.empty()) return out.add("{}");
      if (style.sort_keys)
        std::stable_sort(pairs.begin(), pairs.end(),
                         [&](const auto& a, const auto& b) { return less(runtime, a.first, b.first); });
      out.add('{');
      for (size_t i = 0; i < pairs.size(); ++i) {
        if (i > 0) out.add(style.item_separator);
        new_line(depth + 1);
        append_json_text(out, json_key(pairs[i].first), style.ensure_ascii);
        out.add(style.key_separator);
        append_json(runtime, out, pairs[i].second, style, depth + 1);
      }
      new_line(depth);
      return out.add('}');
    }
    default:
      fault("Object of type {} is not JSON serializable", type_name(value));
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view form(buffer, static_cast<size_t>(end - buffer));  // d.ddde±xx
  const size_t e = form.find('e');
  int exponent = 0;
  std::string_view power = form.substr(e + 1);
  if (power.starts_with('+')) power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string out = form.starts_with('-') ? "-" : "", digits;
  for (char c : form.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  const auto whole = static_cast<size_t>(exponent + 1);
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string text_repr(std::string_view bytes) {
  const bool single = bytes.find('\'') == std::string_view::npos || bytes.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(bytes, at);
    if (point == '\\' || point == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(point);
    } else if (point == '\n') {
      out += "\\n";
    } else if (point == '\r') {
      out += "\\r";
    } else if (point == '\t') {
      out += "\\t";
    } else if (point != ' ' && !is_printable(point)) {
      append_hex(out, point);
    } else {
      out += bytes.substr(begin, at - begin);
    }
  }
  return out += quote;
}

void append_text(Runtime& runtime, TextBuilder& out, const Value& value) {
  if (value.is_undefined()) return;
  if (value.is_text()) return out.add(value.text());
  append_repr(runtime, out, value);
}

std::string to_text(Runtime& runtime, const Value& value) {
  TextBuilder out(runtime.budget);
  append_text(runtime, out, value);
  return out.take();
}

std::string to_repr(Runtime& runtime, const Value& value) {
  TextBuilder out(runtime.budget);
  append_repr(runtime, out, value);
  return out.take();
}

std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  TextBuilder out(runtime.budget);
  append_json(runtime, out, value, style, 0);
  return out.take();
}

}  // namespace megatron::chat
