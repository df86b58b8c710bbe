#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/rl/environments/math/answer_tokens.h"

namespace megatron::rl {

// A formula.
struct Expression {
  enum Kind { number, symbol, add, multiply, divide, power, negate, call };
  Kind kind = number;
  std::string name;  // of a symbol or function
  Decimal value{};
  std::vector<Expression> parts{};
};

// What was answered: a formula with its unit, several values, or a relation between two formulas.
struct Answer {
  enum Kind {
    value,
    several,   // in any order: x = 1 or 2, {1, 2}, unions
    tuple,     // in their order; `name` holds the brackets, as those of an interval
    relation,  // `name` is its sign; two parts
  };
  Kind kind = value;
  std::string name;
  Expression expression{};
  std::string unit;  // lower case; "%" of a percentage
  std::vector<Answer> parts{};
};

// Reads an answer; an Error where it cannot.
Answer parse_answer(std::string_view text);

}  // namespace megatron::rl
