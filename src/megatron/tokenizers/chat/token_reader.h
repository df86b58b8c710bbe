#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tokenizers/chat/lexer.h"

namespace megatron::chat {

// A place in the tokens of a template, which moves forward. expect…() throw a syntax error that says what was
// wanted and what stands there.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_name(std::string_view name) const { return is(Token::Kind::name) && current().text == name; }
  bool is_symbol(std::string_view symbol) const {
    return is(Token::Kind::symbol) && current().text == symbol;
  }
  bool skip_name(std::string_view name);
  bool skip_symbol(std::string_view symbol);
  void expect_symbol(std::string_view symbol);
  void expect(Token::Kind kind, std::string_view what);
  std::string expect_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace megatron::chat
