#include "megatron/tokenizers/chat/number_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

constexpr int64_t kMaxPrecision = 1000;

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

int64_t parse_digits(std::string_view text, size_t& at) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  if (error != std::errc()) fault("a format has no valid width or precision");
  at = static_cast<size_t>(end - text.data());
  return number;
}

// Sign and digits, padded between or around them.
std::string pad_number(Runtime& runtime, std::string_view sign, std::string_view body,
                       const FormatSpec& spec) {
  const bool zero = spec.zero && !spec.align;
  const char align = spec.align ? spec.align : zero ? '=' : '>';
  const std::string fill = zero ? "0" : spec.fill;
  const int64_t size = static_cast<int64_t>(sign.size()) + count_code_points(body);
  const int64_t pad = std::max<int64_t>(spec.width - size, 0);
  TextBuilder out(runtime.budget);
  const int64_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
  const int64_t inside = align == '=' ? pad : 0;
  out.repeat(fill, before);
  out.add(sign);
  out.repeat(fill, inside);
  out.add(body);
  out.repeat(fill, pad - before - inside);
  return out.take();
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

// Puts a separator between every `size` digits before the point.
std::string grouped(std::string digits, char separator, size_t size) {
  if (!separator) return digits;
  size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > size; at -= size) digits.insert(at - size, 1, separator);
  return digits;
}

std::string printed(const char* form, int64_t precision, double value) {
  if (precision > kMaxPrecision) fault("a precision of {} is more than {}", precision, kMaxPrecision);
  const int size = std::snprintf(nullptr, 0, form, static_cast<int>(precision), value);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), form, static_cast<int>(precision), value);
  out.resize(static_cast<size_t>(size));
  return out;
}

std::string real_digits(double value, const FormatSpec& spec) {
  const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case 'f':
    case 'F':
      return printed(spec.alternate ? "%#.*f" : "%.*f", precision, value);
    case 'e':
      return printed(spec.alternate ? "%#.*e" : "%.*e", precision, value);
    case 'E':
      return printed(spec.alternate ? "%#.*E" : "%.*E", precision, value);
    case 'g':
    case 'n':
      return printed(spec.alternate ? "%#.*g" : "%.*g", precision, value);
    case 'G':
      return printed(spec.alternate ? "%#.*G" : "%.*G", precision, value);
    case '%':
      return printed("%.*f", precision, value * 100) + "%";
    case 0: {
      if (spec.precision < 0) return float_repr(value);
      std::string digits = printed("%.*g", std::max<int64_t>(spec.precision, 1), value);
      // Python wants one digit behind the point; where that is one too many, an exponent.
      if (digits.find_first_of(".en") != std::string::npos) return digits;
      const auto whole = static_cast<int64_t>(digits.size());
      if (whole < std::max<int64_t>(spec.precision, 1)) return digits + ".0";
      return printed("%.*e", std::max<int64_t>(spec.precision, 1) - 1, value);
    }
    default:
      fault("Unknown format code '{}' for object of type 'float'", spec.type);
  }
}

}  // namespace

FormatSpec parse_format_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  if (!text.empty()) {
    size_t after = 0;
    next_code_point(text, after);
    if (after < text.size() && is_align(text[after])) {
      spec.fill = text.substr(0, after);
      spec.align = text[after];
      at = after + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  auto next_is = [&](char c) { return at < text.size() && text[at] == c; };
  if (next_is('+') || next_is('-') || next_is(' ')) spec.sign = text[at++];
  if (next_is('#')) spec.alternate = ++at > 0;
  if (next_is('0')) spec.zero = ++at > 0;
  if (at < text.size() && text[at] >= '0' && text[at] <= '9') spec.width = parse_digits(text, at);
  if (next_is(',') || next_is('_')) spec.grouping = text[at++];
  if (next_is('.')) spec.precision = parse_digits(text, ++at);
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fault("Invalid format specifier '{}'", text);
  return spec;
}

std::string format_real(Runtime& runtime, double value, FormatSpec spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits;
  if (!std::isfinite(value)) {
    digits = std::isnan(value) ? "nan" : "inf";
    if (spec.type == 'F' || spec.type == 'E' || spec.type == 'G')
      std::transform(digits.begin(), digits.end(), digits.begin(),
                     [](char c) { return static_cast<char>(c - 32); });
    if (spec.type == '%') digits += "%";
  } else {
    digits = grouped(real_digits(std::abs(value), spec), spec.grouping, 3);
  }
  return pad_number(runtime, sign_of(negative, spec.sign), digits, spec);
}

std::string format_integer(Runtime& runtime, int64_t value, const FormatSpec& spec) {
  if (spec.type && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos)
    return format_real(runtime, static_cast<double>(value), spec);
  if (spec.precision >= 0) fault("Precision not allowed in integer format specifier");
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits, prefix;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      digits = std::to_string(magnitude);
      break;
    case 'x':
      digits = fmt::format("{:x}", magnitude), prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude), prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude), prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude), prefix = "0b";
      break;
    case 'c': {
      if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        fault("%c arg not in range(0x110000)");
      std::string character;
      append_code_point(character, static_cast<char32_t>(value));
      FormatSpec text = spec;
      text.align = spec.align ? spec.align : '>';
      return pad_number(runtime, "", character, text);
    }
    default:
      fault("Unknown format code '{}' for object of type 'int'", spec.type);
  }
  digits = grouped(digits, spec.grouping, spec.type == 0 || spec.type == 'd' ? 3 : 4);
  return pad_number(runtime, sign_of(value < 0, spec.sign) + (spec.alternate ? prefix : ""), digits, spec);
}

std::string format_text(Runtime& runtime, std::string_view text, const FormatSpec& spec) {
  if (spec.type && spec.type != 's') fault("Unknown format code '{}' for object of type 'str'", spec.type);
  if (spec.sign) fault("Sign not allowed in string format specifier");
  if (spec.alternate) fault("Alternate form (#) not allowed in string format specifier");
  if (spec.grouping) fault("Cannot specify '{}' with 's'.", spec.grouping);
  if (spec.align == '=') fault("'=' alignment not allowed in string format specifier");
  if (spec.precision >= 0) text = text.substr(0, byte_offset(text, spec.precision));
  FormatSpec padded = spec;
  if (!padded.align) padded.align = '<';
  if (spec.zero && !spec.align) padded.fill = "0";
  return pad_number(runtime, "", text, padded);
}

std::string format_value(Runtime& runtime, const Value& value, const FormatSpec& spec) {
  if (value.is(Value::Kind::real)) return format_real(runtime, value.real(), spec);
  if (value.is(Value::Kind::boolean) && !spec.type)
    return format_text(runtime, to_text(runtime, value), spec);
  if (value.is_integral()) return format_integer(runtime, value.integer(), spec);
  if (!value.is_text()) fault("unsupported format string passed to {}.__format__", type_name(value));
  return format_text(runtime, to_text(runtime, value), spec);
}

}  // namespace megatron::chat
