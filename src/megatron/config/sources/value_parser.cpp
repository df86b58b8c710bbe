#include "megatron/config/sources/value_parser.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace megatron {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// 12, -3, +4, 1_000, 1e-4, .5, inf, nan; nothing where the word is no number.
std::optional<Json> parse_number(std::string_view word) {
  std::string digits;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool between = i > 0 && i + 1 < word.size() &&
                         std::isdigit(static_cast<unsigned char>(word[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(word[i + 1]));
    if (word[i] != '_' || !between) digits += word[i];
  }
  std::string_view rest = digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty()) return {};
  if (rest == "inf" || rest == ".inf")
    return Json((negative ? -1 : 1) * std::numeric_limits<double>::infinity());
  if (rest == "nan" || rest == ".nan") return Json(std::numeric_limits<double>::quiet_NaN());
  if (!std::isdigit(static_cast<unsigned char>(rest[0])) && rest[0] != '.') return {};
  const char* end = rest.data() + rest.size();
  int64_t integer = 0;
  if (auto [stop, error] = std::from_chars(rest.data(), end, integer); stop == end && error == std::errc())
    return Json(negative ? -integer : integer);
  double real = 0;
  if (auto [stop, error] = std::from_chars(rest.data(), end, real); stop == end && error == std::errc())
    return Json(negative ? -real : real);
  return {};
}

// Reads the grammar of override values.
class ValueReader {
 public:
  explicit ValueReader(std::string_view text) : text_(text) {}

  ParsedValue read() {
    Json value = element("");
    skip_space();
    if (!wrong_ && at_ < text_.size())
      wrong_ = {fmt::format("cannot read what stands after the value: '{}'", text_.substr(at_)),
                "quote the text"};
    return {std::move(value), wrong_};
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    return ++at_, true;
  }

  // `ends` are the characters that end a bare word here.
  Json element(std::string_view ends) {
    skip_space();
    if (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\'' || c == '"') return quoted(c);
      if (c == '[') return list();
      if (c == '{') return mapping();
    }
    return parse_scalar_or_text(bare(ends));
  }

  Json parse_scalar_or_text(const std::pair<std::string, bool>& word) {
    return word.second ? Json(word.first) : parse_scalar(word.first);
  }

  std::string quoted(char quote) {
    std::string result;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == quote) return ++at_, result;
      const bool escape =
          text_[at_] == '\\' && at_ + 1 < text_.size() && (text_[at_ + 1] == quote || text_[at_ + 1] == '\\');
      if (escape) ++at_;
      result += text_[at_];
    }
    wrong_ = {fmt::format("a quote {} is not closed", quote),
              "close it, and mind that the shell takes quotes away"};
    return result;
  }

  // The word, and whether it held an escape, which makes it text.
  std::pair<std::string, bool> bare(std::string_view ends) {
    std::string result;
    bool escaped = false;
    for (; at_ < text_.size(); ++at_) {
      if (text_.substr(at_).starts_with("${")) {
        const size_t close = text_.find('}', at_);
        if (close == std::string_view::npos) {
          wrong_ = {"${ is not closed", "write ${section.key}"};
          return {result, true};
        }
        result += text_.substr(at_, close + 1 - at_);
        at_ = close;
      } else if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        escaped = true;
        if (text_[at_ + 1] == '$') result += '\\';  // interpolate() reads \${ as text
        result += text_[++at_];
      } else if (ends.find(text_[at_]) != std::string_view::npos) {
        break;
      } else {
        result += text_[at_];
      }
    }
    return {std::string(trim(result)), escaped};
  }

  Json list() {
    Json result = Json::array();
    ++at_;
    if (take(']')) return result;
    while (!wrong_) {
      result.push_back(element(",]"));
      if (take(']')) return result;
      if (!take(',') && !wrong_) wrong_ = {"a list is not closed", "write [a,b]"};
    }
    return result;
  }

  Json mapping() {
    Json result = Json::object();
    ++at_;
    if (take('}')) return result;
    while (!wrong_) {
      skip_space();
      const bool is_quoted = at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
      const std::string key = is_quoted ? quoted(text_[at_]) : bare(":,}").first;
      if (wrong_) break;
      if (key.empty() || !take(':')) {
        wrong_ = {"a mapping is not well formed", "write {key: value, other: value}"};
        break;
      }
      if (result.contains(key)) wrong_ = {fmt::format("the key {} stands twice", key), "remove one"};
      result[key] = element(",}");
      if (take('}')) return result;
      if (!take(',') && !wrong_) wrong_ = {"a mapping is not closed", "write {key: value, other: value}"};
    }
    return result;
  }

  std::string_view text_;
  size_t at_ = 0;
  ValidationError wrong_;
};

// Reads ([0]*3+[1]*5)*2 by Python's rules, for lists and whole numbers. A null stands for what cannot be
// read.
class PatternReader {
 public:
  explicit PatternReader(std::string_view text) {
    for (char c : text)
      if (!is_space(c)) text_ += c;
  }

  Json read() {
    Json value = sum();
    return at_ == text_.size() ? value : Json();
  }

 private:
  static constexpr int64_t longest = 100000;

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    return ++at_, true;
  }

  Json sum() {
    Json total = product();
    while (take('+')) total = add(total, product());
    return total;
  }

  Json product() {
    Json result = factor();
    while (take('*')) {
      const Json right = factor();
      result = right.is_array() ? repeat(right, result) : repeat(result, right);
    }
    return result;
  }

  static Json add(const Json& left, const Json& right) {
    if (left.is_int() && right.is_int()) return left.as_int() + right.as_int();
    if (!left.is_array() || !right.is_array() || left.size() + right.size() > longest) return {};
    Json result = left;
    for (const Json& item : right.as_array()) result.push_back(item);
    return result;
  }

  static Json repeat(const Json& what, const Json& times) {
    if (!times.is_int() || times.as_int() < 0 || times.as_int() > longest) return {};
    const int64_t count = times.as_int();
    if (what.is_int()) return what.as_int() <= longest ? Json(what.as_int() * count) : Json();
    if (!what.is_array() || static_cast<int64_t>(what.size()) * count > longest) return {};
    Json result = Json::array();
    for (int64_t i = 0; i < count; ++i)
      for (const Json& item : what.as_array()) result.push_back(item);
    return result;
  }

  Json factor() {
    if (take('(')) {
      if (++depth_ > 64) return {};
      Json inner = sum();
      return take(')') ? inner : Json();
    }
    if (!take('[')) return number();
    Json items = Json::array();
    if (take(']')) return items;
    do {
      items.push_back(number());
      if (items.as_array().back().is_null()) return {};
    } while (take(','));
    return take(']') ? items : Json();
  }

  Json number() {
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) return {};
    at_ += static_cast<size_t>(stop - begin);
    return value;
  }

  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// (128,0), [1,2] and 1,2 as separate words.
void split_numbers(std::string_view text, std::vector<std::string>& words) {
  text = trim(text);
  const bool bracketed = text.size() >= 2 && ((text.front() == '(' && text.back() == ')') ||
                                              (text.front() == '[' && text.back() == ']'));
  if (bracketed) text = text.substr(1, text.size() - 2);
  if (trim(text).empty()) return;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    words.emplace_back(trim(text.substr(begin, comma - begin)));
    begin = comma + 1;
  }
}

Json word_to_value(const Setting& setting, const std::string& word) {
  const bool is_text = setting.type == ValueType::text || setting.type == ValueType::texts ||
                       setting.type == ValueType::choice;
  return is_text ? Json(word) : parse_scalar(word);
}

}  // namespace

Json parse_scalar(std::string_view word) {
  if (word == "null" || word == "Null" || word == "NULL" || word == "~") return {};
  if (word == "true" || word == "True" || word == "TRUE") return true;
  if (word == "false" || word == "False" || word == "FALSE") return false;
  if (std::optional<Json> number = parse_number(word)) return *number;
  return word;
}

ParsedValue parse_override_value(std::string_view text) { return ValueReader(text).read(); }

ParsedValue parse_pattern(std::string_view text) {
  if (Json value = PatternReader(text).read(); !value.is_null()) return {value, {}};
  return {{}, {"neither a number nor a list", "give N, [0,1,1] or ([0]*1+[1]*26)"}};
}

ParsedValue parse_flag_values(const Setting& setting, std::span<const std::string> words) {
  if (setting.is_pattern) return parse_pattern(words.front());
  if (setting.type == ValueType::json) return parse_override_value(words.front());
  // Python's None, as launch scripts write it.
  const bool none = words.size() == 1 && (words[0] == "None" || words[0] == "null");
  if (none) return {};
  if (!setting.is_list()) return {word_to_value(setting, words.front()), {}};
  if (setting.type == ValueType::texts && words.size() == 1 && words[0].starts_with('[') &&
      words[0].ends_with(']'))
    return parse_override_value(words[0]);
  std::vector<std::string> items;
  for (const std::string& word : words) {
    if (setting.type == ValueType::texts) {
      items.push_back(word);
    } else {
      split_numbers(word, items);
    }
  }
  Json list = Json::array();
  for (const std::string& item : items) list.push_back(word_to_value(setting, item));
  return {std::move(list), {}};
}

}  // namespace megatron
