#include "megatron/tokenizers/chat/token_reader.h"

#include <fmt/core.h>

namespace megatron::chat {

bool TokenReader::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

bool TokenReader::skip_symbol(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  take();
  return true;
}

void TokenReader::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) unexpected(fmt::format("'{}'", symbol));
}

void TokenReader::expect(Token::Kind kind, std::string_view what) {
  if (!is(kind)) unexpected(what);
  take();
}

std::string TokenReader::expect_name() {
  if (!is(Token::Kind::name)) unexpected("a name");
  return take().text;
}

void TokenReader::unexpected(std::string_view wanted) const {
  const Token& token = current();
  std::string got;
  switch (token.kind) {
    case Token::Kind::end:
      got = "the end of the template";
      break;
    case Token::Kind::block_end:
      got = "'%}'";
      break;
    case Token::Kind::print_end:
      got = "'}}'";
      break;
    case Token::Kind::name:
    case Token::Kind::symbol:
      got = "'" + token.text + "'";
      break;
    case Token::Kind::text:
      got = "a text";
      break;
    default:
      got = "a number";
  }
  syntax_error(token.line, fmt::format("expected {}, got {}", wanted, got));
}

}  // namespace megatron::chat
