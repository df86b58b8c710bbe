#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::rl {

// A decimal as it was written: all digits, how many of them stand behind the point, and how many of these
// repeat without end.
struct Decimal {
  std::string digits;
  int behind_point = 0, repeating = 0;
};

struct AnswerToken {
  enum Kind {
    number,
    symbol,    // a variable or constant
    function,  // sin, log, …
    command,   // frac, sqrt, binom, rows (a matrix)
    word,      // of plain text or \text{…}
    sign,      // an operator, relation, bracket or separator
    end,
  };
  Kind kind = end;
  std::string text;
  Decimal value{};
};

// Cuts an answer, plain or in LaTeX, into tokens behind which `end` stands. Spacing, sizes, delimiters of
// formulas and currency signs are passed over. An Error where the text has what answers do not have.
std::vector<AnswerToken> answer_tokens(std::string_view text);

}  // namespace megatron::rl
