#include "megatron/rl/environments/math/answer_equality.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/rl/environments/math/answer_value.h"

namespace megatron::rl {
namespace {

constexpr int kPoints = 6;

bool is_close(const Complex& a, const Complex& b) {
  return std::abs(a - b) <= 1e-12L * std::max(std::abs(a), std::abs(b));
}
bool is_finite(const Complex& value) { return std::isfinite(value.real()) && std::isfinite(value.imag()); }

bool numerically_equal(const Expression& a, const Expression& b) {
  std::set<std::string> symbols, others;
  collect_symbols(a, symbols);
  collect_symbols(b, others);
  const bool constant = symbols.empty() && others.empty();
  int compared = 0;
  for (int point = 0; point < (constant ? 1 : kPoints); ++point) {
    const Complex x = numeric_value(a, point), y = numeric_value(b, point);
    if (is_finite(x) != is_finite(y)) return false;
    if (!is_finite(x)) continue;
    // Where terms cancel, what is left of them is rounding.
    if (!is_close(x, y) && std::abs(x - y) > 1e-15L) return false;
    ++compared;
  }
  return compared >= (constant ? 1 : 2);
}

// The number literal of a formula that is nothing else, or null.
const Decimal* decimal_literal(const Expression& e) {
  const Expression* inner = &e;
  while (inner->kind == Expression::negate) inner = &inner->parts[0];
  return inner->kind == Expression::number && inner->value.repeating == 0 && inner->value.behind_point > 0
             ? &inner->value
             : nullptr;
}

// 0.333333 for 1/3.
bool is_rounding(const Expression& decimal, const Expression& exact) {
  const Decimal* literal = decimal_literal(decimal);
  if (!literal || literal->behind_point < 6 || decimal_literal(exact)) return false;
  std::set<std::string> symbols;
  collect_symbols(exact, symbols);
  if (!symbols.empty()) return false;
  const Complex value = numeric_value(exact, 0), rounded = numeric_value(decimal, 0);
  if (!is_finite(value) || value.imag() != 0) return false;
  const long double unit = std::pow(10.0L, static_cast<long double>(-literal->behind_point));
  return std::abs(value.real() - rounded.real()) <= 0.5000001L * unit;
}

bool formulas_equal(const Expression& a, const Expression& b) {
  const auto x = field_value(a), y = field_value(b);
  if (x && y) return *x == *y || is_rounding(a, b) || is_rounding(b, a);
  return numerically_equal(a, b) || is_rounding(a, b) || is_rounding(b, a);
}

Expression hundredth(const Expression& e) {
  return {Expression::divide, "", {}, {e, {Expression::number, "", {"100"}}}};
}
Expression difference(const Expression& a, const Expression& b) {
  return {Expression::add, "", {}, {a, {Expression::negate, "", {}, {b}}}};
}

bool values_equal(const Answer& a, const Answer& b) {
  const bool percent_a = a.unit == "%", percent_b = b.unit == "%";
  if (percent_a != percent_b) {
    const Answer& percent = percent_a ? a : b;
    const Answer& other = percent_a ? b : a;
    return other.unit.empty() && (formulas_equal(percent.expression, other.expression) ||
                                  formulas_equal(hundredth(percent.expression), other.expression));
  }
  if (!a.unit.empty() && !b.unit.empty() && a.unit != b.unit) return false;
  return formulas_equal(a.expression, b.expression);
}

// x, f(x) or y_1: what stands left of = where a value is named.
bool is_name(const Expression& e) {
  if (e.kind == Expression::symbol) return true;
  return e.kind == Expression::multiply && is_name(e.parts[0]) && is_name(e.parts[1]);
}

std::string flipped(const std::string& sign) {
  if (sign == "<") return ">";
  if (sign == ">") return "<";
  if (sign == "<=") return ">=";
  if (sign == ">=") return "<=";
  return sign;
}

bool equal(const Answer& a, const Answer& b);

bool relations_equal(const Answer& a, const Answer& b) {
  const auto same = [](const Answer& x, const Answer& y) {
    return x.name == y.name && equal(x.parts[0], y.parts[0]) && equal(x.parts[1], y.parts[1]);
  };
  if (same(a, b)) return true;
  Answer turned = b;
  turned.name = flipped(b.name);
  std::swap(turned.parts[0], turned.parts[1]);
  if (same(a, turned)) return true;
  // Equations of lines: one is a multiple of the other.
  if (a.name != "=" || b.name != "=") return false;
  for (const Answer* answer : {&a, &b})
    for (const Answer& side : answer->parts)
      if (side.kind != Answer::value || !side.unit.empty()) return false;
  const Expression x = difference(a.parts[0].expression, a.parts[1].expression);
  const Expression y = difference(b.parts[0].expression, b.parts[1].expression);
  Complex ratio = 0;
  for (int point = 0; point < kPoints; ++point) {
    const Complex now = numeric_value(x, point) / numeric_value(y, point);
    if (!is_finite(now) || now == Complex(0)) return false;
    if (point > 0 && !is_close(now, ratio)) return false;
    ratio = now;
  }
  return true;
}

bool same_in_any_order(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  if (a.size() != b.size()) return false;
  std::vector<bool> used(b.size());
  for (const Answer& one : a) {
    size_t found = 0;
    while (found < b.size() && (used[found] || !equal(one, b[found]))) ++found;
    if (found == b.size()) return false;
    used[found] = true;
  }
  return true;
}

// "x = 5" names the value that 5 is.
const Answer& without_name(const Answer& answer) {
  const bool named = answer.kind == Answer::relation && answer.name == "=" &&
                     answer.parts[0].kind == Answer::value && is_name(answer.parts[0].expression);
  return named ? without_name(answer.parts[1]) : answer;
}

bool equal(const Answer& a, const Answer& b) {
  if ((a.kind == Answer::relation) != (b.kind == Answer::relation)) {
    const Answer &x = without_name(a), &y = without_name(b);
    return x.kind != Answer::relation && y.kind != Answer::relation && equal(x, y);
  }
  if (a.kind == Answer::several && a.parts.size() == 1) return equal(a.parts[0], b);
  if (b.kind == Answer::several && b.parts.size() == 1) return equal(a, b.parts[0]);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Answer::value:
      return values_equal(a, b);
    case Answer::relation:
      return relations_equal(a, b);
    case Answer::several:
      return same_in_any_order(a.parts, b.parts);
    case Answer::tuple:
      return a.name == b.name &&
             std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(), equal);
  }
  return false;
}

std::string without_space(std::string_view text) {
  std::string out;
  for (char c : text)
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r' && c != '$') out += c;
  while (!out.empty() && out.back() == '.') out.pop_back();
  return out;
}

}  // namespace

bool answers_equal(std::string_view expected, std::string_view answer) {
  const std::string text = without_space(expected);
  if (!text.empty() && text == without_space(answer)) return true;
  try {
    return equal(parse_answer(expected), parse_answer(answer));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace megatron::rl
