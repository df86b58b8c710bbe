// Filters of numbers, and those that turn values into numbers.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

// Digits without the underscores that Python allows between them; false where one stands elsewhere.
bool without_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() &&
                         std::isalnum(static_cast<unsigned char>(text[i - 1])) &&
                         std::isalnum(static_cast<unsigned char>(text[i + 1]));
    if (text[i] == '_' && !between) return false;
    if (text[i] != '_') out += text[i];
  }
  return !out.empty();
}

// int(text, base) of Python.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  std::string digits;
  if (!without_underscores(strip(text, nullptr, true, true), digits)) return std::nullopt;
  const bool negative = digits[0] == '-';
  std::string_view rest = digits;
  if (negative || digits[0] == '+') rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char kind = static_cast<char>(rest[1] | 0x20);
    const int64_t named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
      rest.remove_prefix(2);
      base = named;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) return std::nullopt;
  uint64_t magnitude = 0;
  const auto [end, error] =
      std::from_chars(rest.data(), rest.data() + rest.size(), magnitude, static_cast<int>(base));
  if (error == std::errc::result_out_of_range) fault("an integer is larger than 64 bits");
  if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
  if (magnitude > uint64_t{INT64_MAX}) fault("an integer is larger than 64 bits");
  return negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

// float(text) of Python.
std::optional<double> parse_real(std::string_view text) {
  std::string digits;
  if (!without_underscores(strip(text, nullptr, true, true), digits)) return std::nullopt;
  std::string word = change_case(digits, Case::lower);
  const bool sign = word[0] == '+' || word[0] == '-';
  const std::string_view name = std::string_view(word).substr(sign);
  if (name == "inf" || name == "infinity") return word[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  if (name == "nan") return std::nan("");
  if (name.empty() || word.find_first_not_of("0123456789+-.e") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) >= 9.2e18) fault("an integer is larger than 64 bits");
  return static_cast<int64_t>(value);
}

Value to_int(Runtime&, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "int", {"default", "base"});
  if (input.is_undefined()) fault("{}", input.undefined().message);
  if (input.is_integral()) return Value(input.integer());
  std::optional<int64_t> result;
  if (input.is(Value::Kind::real)) {
    if (std::isinf(input.real())) fault("cannot convert float infinity to integer");
    result = truncated(input.real());
  } else if (input.is_text()) {
    result = parse_integer(input.text(), bound.integer_or(1, 10));
    if (!result)
      if (const auto real = parse_real(input.text())) result = truncated(*real);
  }
  return result ? Value(*result) : bound.value_or(0, Value(0));
}

Value to_float(Runtime&, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "float", {"default"});
  if (input.is_undefined()) fault("{}", input.undefined().message);
  if (input.is_number()) return Value(input.real());
  if (input.is_text())
    if (const auto value = parse_real(input.text())) return Value(*value);
  return bound.value_or(0, Value(0.0));
}

Value absolute(Runtime&, const Value& input, Arguments& arguments) {
  Bound(arguments, "abs", {});
  if (input.is(Value::Kind::real)) return Value(std::abs(input.real()));
  if (!input.is_integral()) fault("bad operand type for abs(): '{}'", type_name(input));
  return input.integer() < 0 ? negate(input) : Value(input.integer());
}

double rounded(double value, int64_t digits) {
  if (!std::isfinite(value)) return value;
  if (digits > 300) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer, nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

Value round(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "round", {"precision", "method"});
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  const int64_t precision = bound.integer_or(0, 0);
  if (method != "common" && method != "ceil" && method != "floor")
    fault("method must be common, ceil or floor");
  if (input.is_undefined()) fault("{}", input.undefined().message);
  if (!input.is_number()) fault("type {} doesn't define __round__ method", type_name(input));
  if (method == "common") {
    if (input.is(Value::Kind::real)) {
      if (!std::isfinite(input.real()) && !bound.has(0)) return input;
      return Value(rounded(input.real(), precision));
    }
    if (precision >= 0) return Value(input.integer());
    if (precision < -18) return Value(0);
    int64_t scale = 1;
    for (int64_t i = precision; i < 0; ++i) scale *= 10;
    int64_t down = input.integer() / scale * scale, rest = input.integer() - down;
    if (rest < 0) down -= scale, rest += scale;
    const bool up = rest * 2 > scale || (rest * 2 == scale && (down / scale) % 2 != 0);
    return Value(up ? down + scale : down);
  }
  const Value scale = apply(runtime, BinaryOperator::power, Value(10), Value(precision));
  const double scaled = apply(runtime, BinaryOperator::multiply, input, scale).real();
  if (!std::isfinite(scaled)) fault("cannot convert float infinity or NaN to integer");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale.real());
}

Value filesizeformat(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "filesizeformat", {"binary"});
  Arguments none;
  if (!input.is_number() && !(input.is_text() && parse_real(input.text())))
    fault("could not convert a value to float");
  const double bytes = to_float(runtime, input, none).real();
  const bool binary = bound.truth_or(0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return runtime.text("1 Byte");
  if (bytes < base) return runtime.text(fmt::format("{} Bytes", truncated(bytes).value_or(0)));
  const std::string_view letters = binary ? "KMGTPEZY" : "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  for (; i < letters.size(); ++i) {
    unit *= base;
    if (bytes < unit) break;
  }
  const char letter = letters[std::min(i, letters.size() - 1)];
  return runtime.text(fmt::format("{:.1f} {}{}", base * bytes / unit, letter, binary ? "iB" : "B"));
}

constexpr NamedFilter kFilters[] = {
    {"abs", absolute}, {"filesizeformat", filesizeformat}, {"float", to_float}, {"int", to_int},
    {"round", round},
};

}  // namespace

std::span<const NamedFilter> number_filters() { return kFilters; }

}  // namespace megatron::chat
