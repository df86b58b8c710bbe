#include "megatron/rl/environments/countdown.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "megatron/rl/environments/math/final_answer.h"

namespace megatron::rl {
namespace {

// A fraction in 64 bits; one whose numbers are larger, or that divides by zero, is no number.
struct Fraction {
  int64_t above = 0, below = 1;  // below > 0, or 0: no number

  static Fraction of(__int128 above, __int128 below) {
    if (below == 0) return {0, 0};
    __int128 a = above < 0 ? -above : above, b = below < 0 ? -below : below;
    while (b != 0) {
      const __int128 rest = a % b;
      a = b;
      b = rest;
    }
    if (below < 0) a = -a;
    above /= a;
    below /= a;
    constexpr __int128 kMax = INT64_MAX;
    if (above > kMax || above < -kMax || below > kMax) return {0, 0};
    return {static_cast<int64_t>(above), static_cast<int64_t>(below)};
  }
  bool valid() const { return below > 0; }
};

Fraction joined(const Fraction& a, char sign, const Fraction& b) {
  if (!a.valid() || !b.valid()) return {0, 0};
  const __int128 left = a.above, right = b.above;
  switch (sign) {
    case '+':
      return Fraction::of(left * b.below + right * a.below, static_cast<__int128>(a.below) * b.below);
    case '-':
      return Fraction::of(left * b.below - right * a.below, static_cast<__int128>(a.below) * b.below);
    case '*':
      return Fraction::of(left * right, static_cast<__int128>(a.below) * b.below);
    default:
      return Fraction::of(left * b.below, static_cast<__int128>(a.below) * right);
  }
}

class CountdownReader {
 public:
  explicit CountdownReader(std::string_view text) : text_(text) {}

  Fraction run() {
    const Fraction value = sum();
    return next() == '\0' && at_ == text_.size() ? value : Fraction{0, 0};
  }
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  char next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Fraction sum() {
    Fraction left = product();
    for (char sign = next(); sign == '+' || sign == '-'; sign = next()) {
      ++at_;
      left = joined(left, sign, product());
    }
    return left;
  }
  Fraction product() {
    Fraction left = factor();
    for (char sign = next(); sign == '*' || sign == '/'; sign = next()) {
      ++at_;
      left = joined(left, sign, factor());
    }
    return left;
  }
  Fraction factor() {
    if (++depth_ > 100) return {0, 0};
    const Fraction value = signed_value();
    --depth_;
    return value;
  }
  Fraction signed_value() {
    const char c = next();
    if (c == '-' || c == '+') {
      ++at_;
      return joined({0, 1}, c, factor());
    }
    if (c == '(') {
      ++at_;
      const Fraction inner = sum();
      if (next() != ')') return {0, 0};
      ++at_;
      return inner;
    }
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (at_ - begin > 15) return {0, 0};
      value = value * 10 + (text_[at_] - '0');
    }
    if (at_ == begin) return {0, 0};
    numbers_.push_back(value);
    return {value, 1};
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<int64_t> numbers_;
};

std::vector<int64_t> numbers_of(const Json& row) {
  const Json* list = row.find("nums");
  require(list && list->is_array() && list->size() > 0, "the row has no list of numbers 'nums'");
  std::vector<int64_t> numbers;
  for (const Json& item : list->as_array()) numbers.push_back(item.as_int());
  return numbers;
}

int64_t target_of(const Json& row) {
  const Json* target = row.find("target");
  require(target && target->is_number(), "the row has no number 'target'");
  return target->as_int();
}

}  // namespace

bool solves_countdown(std::string_view formula, std::vector<int64_t> numbers, int64_t target) {
  if (formula.size() > 1000) return false;
  CountdownReader reader(formula);
  const Fraction value = reader.run();
  if (!value.valid() || value.below != 1 || value.above != target) return false;
  std::vector<int64_t> used = reader.numbers();
  std::sort(used.begin(), used.end());
  std::sort(numbers.begin(), numbers.end());
  return used == numbers;
}

std::string CountdownEnvironment::prompt(const Json& row) const {
  return fmt::format(
      "Write a formula whose value is {}, from the numbers {}. Use every number exactly once, joined by +, "
      "-, * "
      "or / and with parentheses where needed. Put the formula, without an equals sign, between <answer> and "
      "</answer>, as in <answer>(7 + 5) / 3</answer>.",
      target_of(row), fmt::join(numbers_of(row), ", "));
}

double CountdownEnvironment::reward(const RolloutTask& task, const RolloutResponse& response) const {
  const auto answer = last_tagged(response.text);
  if (!answer) return 0;
  return solves_countdown(answer->text, numbers_of(task.data), target_of(task.data)) ? 1.0 : format_reward_;
}

}  // namespace megatron::rl
