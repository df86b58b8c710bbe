#include "megatron/rl/environments/math/answer_tree.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::rl {
namespace {

using Tokens = std::span<AnswerToken>;  // without the `end`

constexpr int kMaxNesting = 60;

bool opens(const AnswerToken& token) {
  return (token.kind == AnswerToken::sign &&
          (token.text == "(" || token.text == "[" || token.text == "{" || token.text == "\\{" ||
           token.text == "lfloor" || token.text == "lceil")) ||
         (token.kind == AnswerToken::command && token.text == "rows");
}
bool closes(const AnswerToken& token) {
  return token.kind == AnswerToken::sign &&
         (token.text == ")" || token.text == "]" || token.text == "}" || token.text == "\\}" ||
          token.text == "rfloor" || token.text == "rceil" || token.text == "]rows");
}
bool is_sign(const AnswerToken& token, std::string_view text) {
  return token.kind == AnswerToken::sign && token.text == text;
}
bool is_relation(const AnswerToken& token) {
  constexpr std::array<std::string_view, 6> signs = {"=", "<", ">", "<=", ">=", "!="};
  return token.kind == AnswerToken::sign && std::find(signs.begin(), signs.end(), token.text) != signs.end();
}
bool is_plain_integer(const Expression& e) {
  return e.kind == Expression::number && e.value.behind_point == 0;
}

Expression make(Expression::Kind kind, std::vector<Expression> parts, std::string name = "") {
  return {kind, std::move(name), {}, std::move(parts)};
}
Expression integer(std::string digits) { return {Expression::number, "", {std::move(digits)}}; }

// Reads one formula and the unit behind it.
class FormulaReader {
 public:
  // `sign`: which of its signs ± is.
  FormulaReader(Tokens tokens, char sign) : tokens_(tokens.begin(), tokens.end()), plus_minus_(sign) {
    tokens_.push_back({});
  }

  Expression run(std::string& unit) {
    if (peek().kind == AnswerToken::word) {
      Expression words{Expression::symbol, ""};
      while (peek().kind == AnswerToken::word) words.name += (words.name.empty() ? "" : " ") + take().text;
      require(peek().kind == AnswerToken::end, "answer: words before a formula");
      return words;
    }
    Expression whole = sum();
    unit = unit_at_end();
    return whole;
  }

 private:
  const AnswerToken& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  AnswerToken take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool next_is(std::string_view sign) const { return is_sign(peek(), sign); }
  bool take_if(std::string_view sign) {
    if (!next_is(sign)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view sign) { require(take_if(sign), "answer: '{}' is missing", sign); }

  struct Depth {
    explicit Depth(int& value) : value_(value) {
      require(++value_ <= kMaxNesting, "answer: too deeply nested");
    }
    ~Depth() { --value_; }
    int& value_;
  };

  Expression sum() {
    const Depth depth(depth_);
    Expression left = term();
    while (next_is("+") || next_is("-") || next_is("pm")) {
      const std::string sign = take().text;
      Expression right = term();
      const bool minus = sign == "-" || (sign == "pm" && plus_minus_ == '-');
      if (minus) right = make(Expression::negate, {std::move(right)});
      left = make(Expression::add, {std::move(left), std::move(right)});
    }
    return left;
  }

  Expression term() {
    Expression left = mixed_or_signed();
    while (true) {
      if (take_if("*")) {
        left = make(Expression::multiply, {std::move(left), signed_factor()});
      } else if (take_if("/") || take_if(":")) {
        left = make(Expression::divide, {std::move(left), signed_factor()});
      } else if (begins_factor()) {
        left = make(Expression::multiply, {std::move(left), power()});
      } else {
        return left;
      }
    }
  }

  bool begins_factor() const {
    const AnswerToken& next = peek();
    if (next.kind == AnswerToken::symbol || next.kind == AnswerToken::function ||
        next.kind == AnswerToken::command)
      return true;
    if (next.kind == AnswerToken::number) return false;  // "2 3" is no product
    if (next.kind != AnswerToken::sign) return false;
    if (next.text == "|") return bars_ == 0;
    return opens(next);
  }

  Expression signed_factor() {
    const Depth depth(depth_);
    if (take_if("-")) return make(Expression::negate, {signed_factor()});
    if (take_if("+")) return signed_factor();
    if (take_if("pm")) {
      Expression value = signed_factor();
      return plus_minus_ == '-' ? make(Expression::negate, {std::move(value)}) : value;
    }
    return power();
  }

  // "1 2/3" and "1\frac{2}{3}" are sums.
  Expression mixed_or_signed() {
    if (next_is("-") || next_is("+") || next_is("pm")) {
      const Depth depth(depth_);
      const std::string sign = take().text;
      Expression value = mixed_or_signed();
      const bool minus = sign == "-" || (sign == "pm" && plus_minus_ == '-');
      return minus ? make(Expression::negate, {std::move(value)}) : value;
    }
    if (peek().kind == AnswerToken::number && peek().value.behind_point == 0) {
      if (peek(1).kind == AnswerToken::number && is_sign(peek(2), "/") &&
          peek(3).kind == AnswerToken::number && peek(1).value.behind_point == 0) {
        Expression whole = primary(), numerator = primary();
        expect("/");
        return make(Expression::add,
                    {std::move(whole), make(Expression::divide, {std::move(numerator), primary()})});
      }
      if (peek(1).kind == AnswerToken::command && peek(1).text == "frac") {
        Expression whole = primary(), fraction = power();
        const bool mixed = fraction.kind == Expression::divide && is_plain_integer(fraction.parts[0]) &&
                           is_plain_integer(fraction.parts[1]);
        return make(mixed ? Expression::add : Expression::multiply, {std::move(whole), std::move(fraction)});
      }
    }
    return power();
  }

  Expression power() {
    Expression base = postfix();
    if (!take_if("^")) return base;
    if (is_sign(peek(), "degree") || (next_is("{") && is_sign(peek(1), "degree"))) {
      const bool braces = take_if("{");
      take();
      if (braces) expect("}");
      return base;  // degrees count as a unit that is always meant
    }
    return make(Expression::power, {std::move(base), exponent()});
  }
  Expression exponent() {
    const Depth depth(depth_);
    if (take_if("-")) return make(Expression::negate, {exponent()});
    return power();
  }

  Expression postfix() {
    Expression value = primary();
    while (true) {
      if (take_if("!")) {
        value = make(Expression::call, {std::move(value)}, "factorial");
      } else if (!take_if("degree")) {
        return value;
      }
    }
  }

  Expression between(std::string_view end) {
    Expression inner = sum();
    expect(end);
    return inner;
  }

  Expression primary() {
    const Depth depth(depth_);
    const AnswerToken token = take();
    switch (token.kind) {
      case AnswerToken::number:
        if (next_is("_")) return symbol(token.text);  // a number of another base
        return {Expression::number, "", token.value};
      case AnswerToken::symbol:
        return symbol(token.text);
      case AnswerToken::function:
        return function(token.text);
      case AnswerToken::command:
        return command(token.text);
      case AnswerToken::sign:
        if (token.text == "(") return between(")");
        if (token.text == "[") return between("]");
        if (token.text == "{") return between("}");
        if (token.text == "lfloor") return make(Expression::call, {between("rfloor")}, "floor");
        if (token.text == "lceil") return make(Expression::call, {between("rceil")}, "ceil");
        if (token.text == "|") {
          ++bars_;
          Expression inner = between("|");
          --bars_;
          return make(Expression::call, {std::move(inner)}, "abs");
        }
        [[fallthrough]];
      default:
        fail("answer: '{}' begins no formula", token.text);
    }
  }

  // Subscripts belong to a name.
  Expression symbol(std::string name) {
    if (take_if("_")) {
      name += '_';
      if (take_if("{")) {
        while (!next_is("}")) {
          require(peek().kind != AnswerToken::end, "answer: a subscript does not end");
          name += take().text;
        }
        take();
      } else {
        name += take().text;
      }
    }
    return {Expression::symbol, std::move(name)};
  }

  Expression function(std::string name) {
    std::vector<Expression> parts(1);
    std::optional<Expression> raised;
    while (next_is("_") || next_is("^")) {
      if (take().text == "^") {
        raised = exponent();
      } else {
        parts.push_back(argument());
      }
    }
    if (take_if("(")) {
      parts[0] = sum();
      while (take_if(",")) parts.push_back(sum());
      expect(")");
    } else {
      parts[0] = signed_factor();
      while (begins_factor() && peek().kind != AnswerToken::function)
        parts[0] = make(Expression::multiply, {std::move(parts[0]), power()});
    }
    Expression called = make(Expression::call, std::move(parts), std::move(name));
    return raised ? make(Expression::power, {std::move(called), std::move(*raised)}) : called;
  }

  // What stands behind \frac or \sqrt: a group, a symbol, or a number, of which \frac takes one digit.
  Expression argument(bool one_digit = false) {
    if (take_if("{")) return between("}");
    AnswerToken& next = tokens_[at_];
    if (one_digit && next.kind == AnswerToken::number && next.value.behind_point == 0 &&
        next.value.digits.size() > 1) {
      Expression digit = integer(next.value.digits.substr(0, 1));
      next.value.digits.erase(0, 1);
      return digit;
    }
    return primary();
  }

  Expression command(const std::string& name) {
    if (name == "frac") {
      Expression numerator = argument(true);
      return make(Expression::divide, {std::move(numerator), argument(true)});
    }
    if (name == "binom") {
      Expression from = argument(true);
      return make(Expression::call, {std::move(from), argument(true)}, "binomial");
    }
    require(name == "sqrt", "answer: a matrix within a formula");
    Expression degree = integer("2");
    if (take_if("[")) degree = between("]");
    Expression base = argument();
    return make(Expression::power,
                {std::move(base), make(Expression::divide, {integer("1"), std::move(degree)})});
  }

  // Words behind a formula, as "square cm", "m/s" or "cm^2", or a percent sign.
  std::string unit_at_end() {
    if (take_if("%")) {
      require(peek().kind == AnswerToken::end, "answer: something stands behind %");
      return "%";
    }
    std::string unit;
    for (; peek().kind != AnswerToken::end; ++at_) {
      const bool fits =
          peek().kind == AnswerToken::word ||
          (!unit.empty() &&
           (peek().kind == AnswerToken::symbol || peek().kind == AnswerToken::number || next_is("^") ||
            next_is("/") || next_is("{") || next_is("}") || next_is("*") || next_is("-")));
      require(fits, "answer: '{}' does not fit", peek().text);
      if (!next_is("{") && !next_is("}")) unit += peek().text;
    }
    std::erase(unit, ' ');
    if (unit == "percent") return "%";
    if (unit == "degrees" || unit == "degree") return "";
    if (unit.size() > 3 && unit.ends_with('s')) unit.pop_back();
    return unit;
  }

  std::vector<AnswerToken> tokens_;
  size_t at_ = 0;
  char plus_minus_;
  int depth_ = 0, bars_ = 0;
};

// Where `tokens` are to be cut: at what is a separator and stands in no brackets.
template <class Separator>
std::vector<Tokens> split(Tokens tokens, Separator separator) {
  std::vector<Tokens> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (opens(tokens[i])) ++depth;
    if (closes(tokens[i])) --depth;
    if (depth == 0 && separator(tokens[i])) {
      parts.push_back(tokens.subspan(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(tokens.subspan(begin));
  return parts;
}

bool is_comma(const AnswerToken& token) { return is_sign(token, ","); }

// Whether the first token's bracket ends with the last token.
bool is_enclosed(Tokens tokens) {
  if (tokens.size() < 2 || !opens(tokens.front()) || !closes(tokens.back())) return false;
  int depth = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (opens(tokens[i])) ++depth;
    if (closes(tokens[i]) && --depth == 0) return i + 1 == tokens.size();
  }
  return false;
}

Answer parse_part(Tokens tokens, int depth);

Answer all_of(const std::vector<Tokens>& parts, Answer::Kind kind, std::string name, int depth) {
  Answer answer{kind, std::move(name)};
  for (const Tokens part : parts)
    if (!part.empty() || parts.size() == 1) answer.parts.push_back(parse_part(part, depth + 1));
  require(answer.parts.size() <= 64, "answer: {} values", answer.parts.size());
  return answer;
}

Answer parse_rows(Tokens inner, int depth) {
  Answer matrix{Answer::tuple, "()"};
  for (const Tokens row : split(inner, [](const AnswerToken& token) { return is_sign(token, ";;"); })) {
    if (row.empty()) continue;
    Answer entries = all_of(split(row, [](const AnswerToken& token) { return is_sign(token, "&"); }),
                            Answer::tuple, "()", depth);
    // A column is a vector.
    if (entries.parts.size() == 1) {
      Answer entry = std::move(entries.parts[0]);
      entries = std::move(entry);
    }
    matrix.parts.push_back(std::move(entries));
  }
  if (matrix.parts.size() == 1) {
    Answer row = std::move(matrix.parts[0]);
    return row;
  }
  return matrix;
}

// a = b = c says of a that it is c, a < b < c both of its parts.
Answer parse_chain(Tokens tokens, const std::vector<Tokens>& sides, int depth) {
  std::vector<Answer> relations;
  for (size_t i = 1; i < sides.size(); ++i) {
    const size_t sign = static_cast<size_t>(sides[i].data() - tokens.data()) - 1;
    relations.push_back(all_of({sides[i - 1], sides[i]}, Answer::relation, tokens[sign].text, depth));
    require(relations.back().parts.size() == 2, "answer: a relation lacks a side");
  }
  const bool equalities = std::all_of(relations.begin(), relations.end(),
                                      [](const Answer& relation) { return relation.name == "="; });
  if (relations.size() > 1 && !equalities) {
    Answer all{Answer::several, ""};
    all.parts = std::move(relations);
    return all;
  }
  Answer first = std::move(relations.front());
  if (relations.size() > 1) {
    Answer last = std::move(relations.back().parts[1]);
    first.parts[1] = std::move(last);
  }
  return first;
}

Answer parse_part(Tokens tokens, int depth) {
  require(depth <= kMaxNesting, "answer: too deeply nested");
  require(!tokens.empty(), "answer: empty");
  if (auto parts = split(tokens, is_comma); parts.size() > 1)
    return all_of(parts, Answer::several, "", depth);
  if (auto sides = split(tokens, is_relation); sides.size() > 1) return parse_chain(tokens, sides, depth);
  if (auto parts = split(tokens, [](const AnswerToken& token) { return is_sign(token, "cup"); });
      parts.size() > 1)
    return all_of(parts, Answer::several, "", depth);
  if (is_enclosed(tokens)) {
    const Tokens inner = tokens.subspan(1, tokens.size() - 2);
    const std::string& open = tokens.front().text;
    if (tokens.front().kind == AnswerToken::command) return parse_rows(inner, depth);
    if (open == "{") return parse_part(inner, depth + 1);
    auto parts = split(inner, is_comma);
    if (open == "\\{") {
      if (inner.empty()) return {Answer::value, "", {Expression::symbol, "emptyset"}};
      return all_of(parts, Answer::several, "", depth);
    }
    if (parts.size() > 1 && (open == "(" || open == "["))
      return all_of(parts, Answer::tuple, open + tokens.back().text, depth);
    if (open == "(" && tokens.back().text == ")") return parse_part(inner, depth + 1);
  }
  Answer answer;
  answer.expression = FormulaReader(tokens, '+').run(answer.unit);
  if (std::any_of(tokens.begin(), tokens.end(),
                  [](const AnswerToken& token) { return is_sign(token, "pm"); })) {
    Answer other;
    other.expression = FormulaReader(tokens, '-').run(other.unit);
    Answer both{Answer::several, ""};
    both.parts = {std::move(answer), std::move(other)};
    return both;
  }
  return answer;
}

}  // namespace

Answer parse_answer(std::string_view text) {
  std::vector<AnswerToken> tokens = answer_tokens(text);
  return parse_part(Tokens(tokens).first(tokens.size() - 1), 0);
}

}  // namespace megatron::rl
