#include "megatron/rl/environments/math/answer_value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>

#include "megatron/base/hash.h"
#include "megatron/tensor/philox.h"

namespace megatron::rl {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr long double kNaN = std::numeric_limits<long double>::quiet_NaN();
constexpr long double kPi = std::numbers::pi_v<long double>;

uint64_t field_times(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
}
uint64_t field_plus(uint64_t a, uint64_t b) { return (a + b) % kPrime; }
uint64_t field_minus(uint64_t a) { return a == 0 ? 0 : kPrime - a; }
uint64_t field_power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base = field_times(base, base))
    if (exponent & 1) result = field_times(result, base);
  return result;
}
std::optional<uint64_t> field_inverse(uint64_t a) {
  if (a == 0) return {};
  return field_power(a, kPrime - 2);
}

uint64_t random_word(const std::string& name, int point) {
  const Philox random = Philox::at({hash_text(name), 0x616e73}, static_cast<uint64_t>(point));
  return (uint64_t{random.word[0]} << 32) | random.word[1];
}

// 0.1(6): (16 - 1) / (10 * 9)
std::optional<uint64_t> field_of(const Decimal& decimal) {
  uint64_t all = 0, fixed = 0;
  const size_t repeating = static_cast<size_t>(decimal.repeating);
  for (size_t i = 0; i < decimal.digits.size(); ++i) {
    if (repeating > 0 && i == decimal.digits.size() - repeating) fixed = all;
    all = field_plus(field_times(all, 10), static_cast<uint64_t>(decimal.digits[i] - '0'));
  }
  uint64_t below = field_power(10, static_cast<uint64_t>(decimal.behind_point - decimal.repeating));
  if (repeating > 0) {
    all = field_plus(all, field_minus(fixed));
    below = field_times(below, field_plus(field_power(10, repeating), field_minus(1)));
  }
  const auto inverted = field_inverse(below);
  if (!inverted) return {};
  return field_times(all, *inverted);
}

long double number_of(const Decimal& decimal) {
  const std::string text = decimal.digits + "e-" + std::to_string(decimal.behind_point);
  long double value = std::strtold(text.c_str(), nullptr);
  if (decimal.repeating > 0) {
    const std::string period =
        decimal.digits.substr(decimal.digits.size() - static_cast<size_t>(decimal.repeating));
    const long double unit = std::pow(10.0L, static_cast<long double>(-decimal.behind_point));
    value += std::strtold(period.c_str(), nullptr) * unit /
             (std::pow(10.0L, static_cast<long double>(decimal.repeating)) - 1);
  }
  return value;
}

size_t node_count(const Expression& e) {
  size_t count = 1;
  for (const Expression& part : e.parts) count += node_count(part);
  return count;
}

// A short formula without names whose value is an integer of moderate size. Longer ones are not looked at:
// exponents of exponents would be evaluated over and over.
std::optional<int64_t> small_integer(const Expression& e) {
  if (node_count(e) > 20) return {};
  std::set<std::string> symbols;
  collect_symbols(e, symbols);
  if (!symbols.empty()) return {};
  const Complex value = numeric_value(e, 0);
  const long double rounded = std::round(value.real());
  if (value.imag() != 0 || !(std::abs(rounded) < 1e6L) || rounded != value.real()) return {};
  const auto integer = static_cast<int64_t>(rounded);
  const uint64_t expected =
      integer < 0 ? field_minus(static_cast<uint64_t>(-integer)) : static_cast<uint64_t>(integer);
  if (field_value(e) != expected) return {};
  return integer;
}

std::optional<uint64_t> field_call(const Expression& e) {
  const auto n = small_integer(e.parts[0]);
  if (e.name == "factorial") {
    if (!n || *n < 0 || *n > 2000) return {};
    uint64_t product = 1;
    for (int64_t i = 2; i <= *n; ++i) product = field_times(product, static_cast<uint64_t>(i));
    return product;
  }
  if (e.name == "binomial" && e.parts.size() == 2) {
    const auto k = small_integer(e.parts[1]);
    if (!n || !k || *k < 0 || *n < *k || *n > 2000) return {};
    uint64_t above = 1, below = 1;
    for (int64_t i = 0; i < *k; ++i) {
      above = field_times(above, static_cast<uint64_t>(*n - i));
      below = field_times(below, static_cast<uint64_t>(i + 1));
    }
    return field_times(above, *field_inverse(below));
  }
  if (e.name == "abs" && n) return static_cast<uint64_t>(std::abs(*n));
  return {};
}

// Without the sign of a zero, which would choose the branch of roots and logarithms.
Complex on_the_real_line(const Complex& value) {
  return value.imag() == 0 ? Complex(value.real(), 0) : value;
}

Complex numeric_call(const Expression& e, int point) {
  const Complex x = on_the_real_line(numeric_value(e.parts[0], point));
  const std::string& f = e.name;
  const bool real = x.imag() == 0;
  if (f == "abs") return std::abs(x);
  if (f == "floor") return real ? std::floor(x.real() + 1e-15L) : kNaN;
  if (f == "ceil") return real ? std::ceil(x.real() - 1e-15L) : kNaN;
  if (f == "factorial")
    return real && x.real() >= 0 && x.real() == std::floor(x.real()) ? std::tgamma(x.real() + 1) : kNaN;
  if (e.parts.size() == 2) {
    const Complex y = numeric_value(e.parts[1], point);
    if (f == "log") return std::log(x) / std::log(y);
    if (y.imag() != 0 || !real) return kNaN;
    if (f == "binomial")
      return std::round(std::exp(std::lgamma(x.real() + 1) - std::lgamma(y.real() + 1) -
                                 std::lgamma(x.real() - y.real() + 1)));
    if (f == "max") return std::max(x.real(), y.real());
    if (f == "min") return std::min(x.real(), y.real());
    return kNaN;
  }
  if (e.parts.size() > 2) return kNaN;
  if (f == "sin") return std::sin(x);
  if (f == "cos") return std::cos(x);
  if (f == "tan") return std::tan(x);
  if (f == "cot") return Complex(1) / std::tan(x);
  if (f == "sec") return Complex(1) / std::cos(x);
  if (f == "csc") return Complex(1) / std::sin(x);
  if (f == "arcsin" || f == "asin") return std::asin(x);
  if (f == "arccos" || f == "acos") return std::acos(x);
  if (f == "arctan" || f == "atan") return std::atan(x);
  if (f == "sinh") return std::sinh(x);
  if (f == "cosh") return std::cosh(x);
  if (f == "tanh") return std::tanh(x);
  if (f == "exp") return std::exp(x);
  if (f == "ln" || f == "log") return std::log(x);
  if (f == "lg") return std::log(x) / std::log(10.0L);
  return kNaN;
}

Complex numeric_power(Complex base, const Complex& exponent, const Expression& e) {
  base = on_the_real_line(base);
  if (exponent.imag() == 0 && exponent.real() == std::round(exponent.real()) &&
      std::abs(exponent.real()) <= 64) {
    Complex product = 1;
    for (int i = 0; i < std::abs(static_cast<int>(exponent.real())); ++i) product *= base;
    return exponent.real() < 0 ? Complex(1) / product : product;
  }
  if (base == Complex(0)) return exponent.real() > 0 ? Complex(0) : Complex(kNaN);
  if (base.imag() == 0 && base.real() > 0 && exponent.imag() == 0)
    return std::pow(base.real(), exponent.real());
  // An odd root of a negative number is the real one.
  if (base.imag() == 0 && e.parts[1].kind == Expression::divide) {
    const auto degree = small_integer(e.parts[1].parts[1]);
    const auto above = small_integer(e.parts[1].parts[0]);
    if (degree && above && *degree % 2 != 0) {
      const long double root = std::pow(-base.real(), exponent.real());
      return *above % 2 != 0 ? -root : root;
    }
  }
  return std::pow(base, exponent);
}

}  // namespace

void collect_symbols(const Expression& e, std::set<std::string>& symbols) {
  if (e.kind == Expression::symbol && e.name != "pi" && e.name != "e" && e.name != "i")
    symbols.insert(e.name);
  for (const Expression& part : e.parts) collect_symbols(part, symbols);
}

std::optional<uint64_t> field_value(const Expression& e) {
  switch (e.kind) {
    case Expression::number:
      return field_of(e.value);
    case Expression::symbol:
      // i is a square root of -1, which the field lacks.
      if (e.name == "i") return {};
      return random_word(e.name, 0) % kPrime;
    case Expression::call:
      return field_call(e);
    case Expression::power: {
      const auto base = field_value(e.parts[0]);
      const auto exponent = small_integer(e.parts[1]);
      if (!base || !exponent) return {};
      const uint64_t value = field_power(*base, static_cast<uint64_t>(std::abs(*exponent)));
      return *exponent < 0 ? field_inverse(value) : std::optional(value);
    }
    default:
      break;
  }
  const auto a = field_value(e.parts[0]);
  if (!a) return {};
  if (e.kind == Expression::negate) return field_minus(*a);
  auto b = field_value(e.parts[1]);
  if (b && e.kind == Expression::divide) b = field_inverse(*b);
  if (!b) return {};
  return e.kind == Expression::add ? field_plus(*a, *b) : field_times(*a, *b);
}

Complex numeric_value(const Expression& e, int point) {
  switch (e.kind) {
    case Expression::number:
      return number_of(e.value);
    case Expression::symbol: {
      if (e.name == "pi") return kPi;
      if (e.name == "e") return std::numbers::e_v<long double>;
      if (e.name == "i") return {0, 1};
      const uint64_t word = random_word(e.name, point);
      const long double size = 0.3L + 2.4L * static_cast<long double>(word >> 1) * 0x1p-63L;
      return point % 2 != 0 && (point == 1 || (word & 1)) ? -size : size;
    }
    case Expression::add:
      return numeric_value(e.parts[0], point) + numeric_value(e.parts[1], point);
    case Expression::multiply:
      return numeric_value(e.parts[0], point) * numeric_value(e.parts[1], point);
    case Expression::divide:
      return numeric_value(e.parts[0], point) / numeric_value(e.parts[1], point);
    case Expression::negate:
      return -numeric_value(e.parts[0], point);
    case Expression::power:
      return numeric_power(numeric_value(e.parts[0], point), numeric_value(e.parts[1], point), e);
    case Expression::call:
      return numeric_call(e, point);
  }
  return kNaN;
}

}  // namespace megatron::rl
