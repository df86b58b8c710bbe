#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::chat {

struct Token {
  enum class Kind {
    data,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    text,
    integer,
    real,
    symbol,
    end
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // of data, a name, a text (unescaped) or a symbol
  int64_t integer = 0;
  double real = 0;
};

// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks: the newline behind a block
// and the blanks before one on its line belong to the block. Comments are left out; the last token is `end`.
std::vector<Token> tokenize(std::string_view source);

// The message of every error in a template's text.
[[noreturn]] void syntax_error(int line, std::string_view problem);

}  // namespace megatron::chat
