#include "megatron/tokenizers/chat/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "megatron/tokenizers/chat/template_error.h"
#include "megatron/tokenizers/chat/text_literal.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char32_t point) {
  if (point >= 0x80) return is_alnum(point);
  return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z') || point == '_' ||
         (point >= '0' && point <= '9');
}

// Lines end in \n alone, and one newline at the end is dropped.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(normalized(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    add(Token::Kind::end);
    return std::move(tokens_);
  }

 private:
  bool follows(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  Token& add(Token::Kind kind) {
    tokens_.emplace_back();
    tokens_.back().kind = kind;
    tokens_.back().line = line_;
    return tokens_.back();
  }
  void add_data(std::string_view data) {
    if (!data.empty()) add(Token::Kind::data).text = data;
  }
  // Moves on, counting lines.
  void move_to(size_t at) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<long>(at_), text_.begin() + static_cast<long>(at), '\n'));
    at_ = at;
  }
  void skip_space() {
    size_t at = at_;
    while (at < text_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(text_, next))) break;
      at = next;
    }
    move_to(at);
  }

  // The text before a tag that begins at `tag` and is followed by `sign`, with what belongs to the tag cut
  // off.
  std::string_view before_tag(size_t tag, char sign, bool lstrip) const {
    std::string_view text = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || !lstrip) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    return strip(text.substr(line), nullptr, true, true).empty() ? text.substr(0, line) : text;
  }

  // Data up to the next tag, and that tag.
  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        add_data(std::string_view(text_).substr(at_));
        return move_to(text_.size());
      }
      const char kind = text_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = text_[tag + 1];
    char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    add_data(before_tag(tag, sign, kind != '{'));
    move_to(tag + 2 + (sign != '\0'));
    line_starting_ = false;
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    add(kind == '%' ? Token::Kind::block_begin : Token::Kind::print_begin);
    code(kind == '%');
  }

  // Behind the end of a block: `-` takes all whitespace, nothing the newline, `+` neither.
  void end_of_block(char sign) {
    if (sign == '-') {
      const size_t begin = at_;
      skip_space();
      line_starting_ = at_ > begin && text_[at_ - 1] == '\n';
      return;
    }
    line_starting_ = sign == '\0' && peek() == '\n';
    if (line_starting_) move_to(at_ + 1);
  }

  void comment() {
    const size_t end = text_.find("#}", at_);
    if (at_ == text_.size()) return;  // as Jinja, which misses the end only where something stands before it
    if (end == std::string::npos) syntax_error(line_, "a comment has no end");
    const char sign = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+') ? text_[end - 1] : '\0';
    move_to(end + 2);
    end_of_block(sign);
  }

  // {% raw %}…{% endraw %}: whether one stands here. The position is behind the tag's begin and sign.
  bool raw() {
    const size_t begin = at_;
    const int line = line_;
    skip_space();
    if (follows("raw")) {
      move_to(at_ + 3);
      skip_space();
      const bool strips = follows("-%}");
      if (strips || follows("%}")) {
        move_to(at_ + (strips ? 3 : 2));
        line_starting_ = false;
        if (strips) end_of_block('-');
        raw_body();
        return true;
      }
    }
    at_ = begin;
    line_ = line;
    return false;
  }

  void raw_body() {
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      size_t at = tag + 2;
      const char sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : '\0';
      auto skip = [&] {
        for (size_t next = at; at < text_.size() && is_space(next_code_point(text_, next)); at = next) {
        }
      };
      skip();
      if (std::string_view(text_).substr(at, 6) != "endraw") continue;
      at += 6;
      skip();
      const char close = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at++] : '\0';
      if (std::string_view(text_).substr(at, 2) != "%}") continue;
      add_data(before_tag(tag, sign, true));
      move_to(at + 2);
      return end_of_block(close);
    }
    if (at_ < text_.size()) syntax_error(line_, "a raw block has no end");
  }

  // Behind the name that begins here; where there is none, here.
  size_t name_end() const {
    size_t end = at_;
    for (size_t next = end; next < text_.size() && is_name_part(next_code_point(text_, next));) end = next;
    return end;
  }

  // The tokens inside {{ }} or {% %}.
  void code(bool block) {
    std::string brackets;
    for (;;) {
      if (brackets.empty() && at_end(block)) return;
      if (at_ >= text_.size()) return;
      size_t next = at_;
      if (is_space(next_code_point(text_, next))) {
        skip_space();
      } else if (is_ascii_digit(peek())) {
        number();
      } else if (const size_t end = name_end(); end > at_) {
        add(Token::Kind::name).text = text_.substr(at_, end - at_);
        at_ = end;
      } else if (peek() == '\'' || peek() == '"') {
        literal();
      } else {
        symbol(brackets);
      }
    }
  }

  bool at_end(bool block) {
    const char sign = peek() == '-' || (block && peek() == '+') ? peek() : '\0';
    const size_t close = at_ + (sign != '\0');
    if (std::string_view(text_).substr(close, 2) != (block ? "%}" : "}}")) return false;
    add(block ? Token::Kind::block_end : Token::Kind::print_end);
    move_to(close + 2);
    if (block || sign == '-') {
      end_of_block(sign);
    } else {
      line_starting_ = false;
    }
    return true;
  }

  void literal() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) syntax_error(line_, "a text has no end");
    Token& token = add(Token::Kind::text);
    const std::string problem = unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1), token.text);
    if (!problem.empty()) syntax_error(line_, problem);
    move_to(end + 1);
  }

  // Digits with single underscores between them.
  size_t digits_from(size_t at, auto is_digit) const {
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    const size_t begin = at_;
    auto decimal = [](char c) { return is_ascii_digit(c); };
    size_t end = digits_from(begin, decimal);
    bool real = false;
    if (begin == 0 || text_[begin - 1] != '.') {
      if (end + 1 < text_.size() && text_[end] == '.' && is_ascii_digit(text_[end + 1])) {
        end = digits_from(end + 1, decimal);
        real = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        const size_t sign =
            end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
        if (end + 1 + sign < text_.size() && is_ascii_digit(text_[end + 1 + sign])) {
          end = digits_from(end + 1 + sign, decimal);
          real = true;
        }
      }
    }
    if (!real && text_[begin] == '0') return prefixed_number();
    std::string digits = text_.substr(begin, end - begin);
    std::erase(digits, '_');
    if (real) {
      add(Token::Kind::real).real = std::strtod(digits.c_str(), nullptr);
    } else {
      add_integer(digits, 10);
    }
    at_ = end;
  }

  void prefixed_number() {
    const char kind = static_cast<char>(peek(1) | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    auto fits = [base](char c) {
      const char low = static_cast<char>(c | 0x20);
      return base == 16 ? is_ascii_digit(c) || (low >= 'a' && low <= 'f')
                        : is_ascii_digit(c) && c - '0' < base;
    };
    const size_t begin = at_ + 2, end = base == 10 ? begin : digits_from(begin, fits);
    if (end == begin) {  // zero, and more of them
      add(Token::Kind::integer);
      at_ = digits_from(at_ + 1, [](char c) { return c == '0'; });
      return;
    }
    std::string digits = text_.substr(begin, end - begin);
    std::erase(digits, '_');
    add_integer(digits, base);
    at_ = end;
  }

  void add_integer(const std::string& digits, int base) {
    Token& token = add(Token::Kind::integer);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (error != std::errc()) syntax_error(line_, "an integer is larger than 64 bits");
  }

  void symbol(std::string& brackets) {
    constexpr std::string_view kSymbols[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                             "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                             ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (std::string_view candidate : kSymbols) {
      if (!follows(candidate)) continue;
      const char c = candidate[0];
      if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (brackets.empty() || brackets.back() != c) syntax_error(line_, fmt::format("unexpected '{}'", c));
        brackets.pop_back();
      }
      add(Token::Kind::symbol).text = candidate;
      at_ += candidate.size();
      return;
    }
    syntax_error(line_, fmt::format("unexpected character '{}'", peek()));
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

void syntax_error(int line, std::string_view problem) {
  throw TemplateError(fmt::format("line {}: {}", line, problem));
}

}  // namespace megatron::chat
