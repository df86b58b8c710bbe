#include "megatron/tokenizers/chat/operations.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/percent_format.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {
namespace {

const char* symbol(BinaryOperator op) {
  constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSymbols[static_cast<int>(op)];
}

[[noreturn]] void refuse(BinaryOperator op, const Value& left, const Value& right) {
  fault("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(left), type_name(right));
}

[[noreturn]] void too_large() { fault("an integer is larger than 64 bits"); }

void require_defined(const Value& value) {
  if (value.is_undefined()) fault("{}", value.undefined().message);
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) fault("integer division or modulo by zero");
  if (b == -1 && a == INT64_MIN) too_large();
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
}

// Python's float remainder has the sign of the divisor.
double float_mod(double a, double b) {
  if (b == 0) fault("float modulo");
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

double float_floor_div(double a, double b) {
  if (b == 0) fault("float floor division by zero");
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fault("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t square = base; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(result, square, &result)) too_large();
    if (exponent > 1 && __builtin_mul_overflow(square, square, &square)) too_large();
  }
  return Value(result);
}

Value on_integers(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOperator::add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value(result);
    case BinaryOperator::subtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value(result);
    case BinaryOperator::multiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value(result);
    case BinaryOperator::divide:
      if (b == 0) fault("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOperator::floor_divide:
      return Value(floor_div(a, b));
    case BinaryOperator::modulo:
      if (b == -1) return Value(0);
      return Value(a - floor_div(a, b) * b);
    case BinaryOperator::power:
      break;
  }
  return integer_power(a, b);
}

Value on_reals(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::add:
      return Value(a + b);
    case BinaryOperator::subtract:
      return Value(a - b);
    case BinaryOperator::multiply:
      return Value(a * b);
    case BinaryOperator::divide:
      if (b == 0) fault("float division by zero");
      return Value(a / b);
    case BinaryOperator::floor_divide:
      return Value(float_floor_div(a, b));
    case BinaryOperator::modulo:
      return Value(float_mod(a, b));
    case BinaryOperator::power:
      break;
  }
  if (a == 0 && b < 0) fault("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    fault("complex numbers are not supported");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fault("Numerical result out of range");
  return Value(result);
}

Value repeated(Runtime& runtime, const Value& value, int64_t count) {
  if (value.is_text()) {
    TextBuilder out(runtime.budget);
    out.repeat(value.text(), count);
    return runtime.text(out.take(), value.markup());
  }
  Values items;
  const Values& once = value.items();
  if (count > 0 && !once.empty()) {
    if (count > INT64_MAX / static_cast<int64_t>(once.size() * sizeof(Value)))
      fault("a sequence is too long");
    Charge charge(runtime.budget, static_cast<size_t>(count) * once.size() * sizeof(Value));
    for (; count > 0; --count) items.insert(items.end(), once.begin(), once.end());
  }
  return value.is(Value::Kind::list) ? runtime.list(std::move(items)) : runtime.tuple(std::move(items));
}

Value joined_texts(Runtime& runtime, const Value& left, const Value& right) {
  const bool markup = left.markup() || right.markup();
  TextBuilder out(runtime.budget);
  for (const Value* part : {&left, &right})
    markup && !part->markup() ? out.add(escape_html(part->text())) : out.add(part->text());
  return runtime.text(out.take(), markup);
}

// -1, 0 or 1 of what has an order; false where it has none.
bool try_compare(Runtime& runtime, const Value& left, const Value& right, bool or_equal, bool& result) {
  runtime.budget.step();
  if (left.is_integral() && right.is_integral()) {
    result = or_equal ? left.integer() <= right.integer() : left.integer() < right.integer();
  } else if (left.is_number() && right.is_number()) {
    result = or_equal ? left.real() <= right.real() : left.real() < right.real();
  } else if (left.is_text() && right.is_text()) {
    runtime.budget.step(static_cast<int64_t>(std::min(left.text().size(), right.text().size()) / 16));
    result = or_equal ? left.text() <= right.text() : left.text() < right.text();
  } else if (left.is_sequence() && left.kind() == right.kind()) {
    const Values &a = left.items(), &b = right.items();
    const size_t both = std::min(a.size(), b.size());
    for (size_t i = 0; i < both; ++i)
      if (!equal(runtime, a[i], b[i])) {
        result = or_equal ? less_or_equal(runtime, a[i], b[i]) : less(runtime, a[i], b[i]);
        return true;
      }
    result = or_equal ? a.size() <= b.size() : a.size() < b.size();
  } else {
    return false;
  }
  return true;
}

bool compare(Runtime& runtime, const Value& left, const Value& right, bool or_equal) {
  require_defined(left);
  require_defined(right);
  bool result = false;
  if (!try_compare(runtime, left, right, or_equal, result))
    fault("'{}' not supported between instances of '{}' and '{}'", or_equal ? "<=" : "<", type_name(left),
          type_name(right));
  return result;
}

}  // namespace

Value apply(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return on_integers(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return on_reals(op, left.real(), right.real());
  if (op == BinaryOperator::modulo && left.is_text()) return percent_format(runtime, left, right);
  require_defined(left);
  require_defined(right);
  if (op == BinaryOperator::add) {
    if (left.is_text() && right.is_text()) return joined_texts(runtime, left, right);
    if (left.is_sequence() && left.kind() == right.kind()) {
      Charge charge(runtime.budget, (left.items().size() + right.items().size()) * sizeof(Value));
      Values items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      return left.is(Value::Kind::list) ? runtime.list(std::move(items)) : runtime.tuple(std::move(items));
    }
    if (left.is_text()) fault("can only concatenate str (not \"{}\") to str", type_name(right));
  }
  if (op == BinaryOperator::multiply) {
    if ((left.is_text() || left.is_sequence()) && right.is_integral())
      return repeated(runtime, left, right.integer());
    if (left.is_integral() && (right.is_text() || right.is_sequence()))
      return repeated(runtime, right, left.integer());
  }
  refuse(op, left, right);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is(Value::Kind::real)) return Value(-value.real());
  if (!value.is_integral()) fault("bad operand type for unary -: '{}'", type_name(value));
  if (value.integer() == INT64_MIN) too_large();
  return Value(-value.integer());
}

Value plus(const Value& value) {
  require_defined(value);
  if (!value.is_number()) fault("bad operand type for unary +: '{}'", type_name(value));
  return value.is(Value::Kind::real) ? value : Value(value.integer());
}

bool equal(Runtime& runtime, const Value& left, const Value& right) {
  runtime.budget.step();
  if (left.is_integral() && right.is_integral()) return left.integer() == right.integer();
  if (left.is_number() && right.is_number()) return left.real() == right.real();
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Value::Kind::none:
    case Value::Kind::undefined:
      return true;
    case Value::Kind::text:
      runtime.budget.step(static_cast<int64_t>(left.text().size() / 16));
      return left.text() == right.text();
    case Value::Kind::list:
    case Value::Kind::tuple: {
      const Values &a = left.items(), &b = right.items();
      if (a.size() != b.size()) return false;
      for (size_t i = 0; i < a.size(); ++i)
        if (!equal(runtime, a[i], b[i])) return false;
      return true;
    }
    case Value::Kind::dict: {
      if (left.pairs().size() != right.pairs().size()) return false;
      for (const auto& [key, value] : left.pairs()) {
        const Value* other = find_key(runtime, *right.dict(), key);
        if (!other || !equal(runtime, value, *other)) return false;
      }
      return true;
    }
    default:
      break;
  }
  const auto *a = left.object_as<Range>(), *b = right.object_as<Range>();
  if (a && b)
    return a->length() == b->length() &&
           (a->length() == 0 || (a->start == b->start && (a->length() == 1 || a->step == b->step)));
  return left.identity() == right.identity();
}

bool less(Runtime& runtime, const Value& left, const Value& right) {
  return compare(runtime, left, right, false);
}
bool less_or_equal(Runtime& runtime, const Value& left, const Value& right) {
  return compare(runtime, left, right, true);
}

void require_hashable(Runtime& runtime, const Value& key) {
  runtime.budget.step();
  if (key.is(Value::Kind::list) || key.is_dict()) fault("unhashable type: '{}'", type_name(key));
  if (key.is(Value::Kind::tuple))
    for (const Value& item : key.items()) require_hashable(runtime, item);
}

const Value* find_key(Runtime& runtime, const Mapping& dict, const Value& key) {
  require_hashable(runtime, key);
  for (const auto& [candidate, value] : dict.items) {
    if (key.is_text() && candidate.is_text()) {  // the usual case, cheaply
      runtime.budget.step();
      if (key.text() == candidate.text()) return &value;
    } else if (equal(runtime, key, candidate)) {
      return &value;
    }
  }
  return nullptr;
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) {
      require_defined(item);
      fault("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    runtime.budget.step(static_cast<int64_t>(container.text().size() / 16));
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.is_dict()) return find_key(runtime, *container.dict(), item) != nullptr;
  if (!is_iterable(container)) fault("argument of type '{}' is not iterable", type_name(container));
  Cursor cursor(runtime, container);
  for (Value other; cursor.next(other);)
    if ((item.identity() && item.identity() == other.identity()) || equal(runtime, item, other)) return true;
  return false;
}

std::string escape_html(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (char c : bytes) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

Values sort_by(Runtime& runtime, Values items, Values keys, bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(runtime, keys[b], keys[a]) : less(runtime, keys[a], keys[b]);
  });
  Values sorted;
  sorted.reserve(items.size());
  for (size_t i : order) sorted.push_back(std::move(items[i]));
  return sorted;
}

}  // namespace megatron::chat
