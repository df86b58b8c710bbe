#include "megatron/tokenizers/chat/runtime.h"

#include <algorithm>

#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

// Containers deeper than this could not be printed or compared, nor freed, without going deep into the stack.
constexpr int kMaxNesting = 600;

int checked_nesting(int nesting) {
  if (nesting > kMaxNesting) fault("values are nested deeper than {} levels", kMaxNesting);
  return nesting;
}

}  // namespace

const void* Value::identity() const {
  switch (kind()) {
    case Kind::text:
      return std::get<std::shared_ptr<const Text>>(data_).get();
    case Kind::list:
      return std::get<List>(data_).items.get();
    case Kind::tuple:
      return std::get<Tuple>(data_).items.get();
    case Kind::dict:
      return dict().get();
    case Kind::object:
      return &object();
    default:
      return nullptr;
  }
}

int Value::nesting() const {
  if (is_object()) return object().nesting();
  return is_sequence() ? sequence().nesting : is_dict() ? dict()->nesting : 0;
}

Value Object::call(Runtime&, Arguments) { fault("'{}' object is not callable", type_name()); }

Runtime::~Runtime() {
  for (auto& space : namespaces_) space->clear();
}

Value Runtime::text(std::string bytes, bool markup) {
  Charge charge(budget, bytes.size() + 64);
  return Value(std::make_shared<const Text>(Text{std::move(bytes), markup, std::move(charge)}));
}

Value Runtime::list(Values items) {
  Charge charge(budget, items.size() * sizeof(Value) + 64);
  int nesting = 0;
  for (const Value& item : items) nesting = std::max(nesting, item.nesting());
  return Value::list(std::make_shared<const Sequence>(
      Sequence{std::move(items), checked_nesting(nesting + 1), false, std::move(charge)}));
}

Value Runtime::tuple(Values items, bool group) {
  Charge charge(budget, items.size() * sizeof(Value) + 64);
  int nesting = 0;
  for (const Value& item : items) nesting = std::max(nesting, item.nesting());
  return Value::tuple(std::make_shared<const Sequence>(
      Sequence{std::move(items), checked_nesting(nesting + 1), group, std::move(charge)}));
}

Value Runtime::dict(ValuePairs items) {
  Charge charge(budget, items.size() * 2 * sizeof(Value) + 64);
  int nesting = 0;
  for (const auto& [key, value] : items) nesting = std::max({nesting, key.nesting(), value.nesting()});
  return Value(std::make_shared<const Mapping>(
      Mapping{std::move(items), checked_nesting(nesting + 1), std::move(charge)}));
}

Value Runtime::undefined(std::string message) {
  return Value(std::make_shared<const Undefined>(Undefined{std::move(message)}));
}

Value Runtime::make_namespace() {
  auto space = std::make_shared<Namespace>(Charge(budget, 128));
  namespaces_.push_back(space);
  return Value(std::shared_ptr<Object>(space));
}

Value Runtime::from_json(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_bool()) return Value(json.as_bool());
  if (json.is_int()) return Value(json.as_int());
  if (json.is_double()) return Value(json.as_double());
  if (json.is_string()) return text(json.as_string());
  if (json.is_array()) {
    Values items;
    items.reserve(json.size());
    for (const Json& item : json.as_array()) items.push_back(from_json(item));
    return list(std::move(items));
  }
  ValuePairs items;
  items.reserve(json.size());
  for (const auto& [key, value] : json.as_object()) items.emplace_back(text(key), from_json(value));
  return dict(std::move(items));
}

int nesting_around(std::initializer_list<const Value*> values) {
  int nesting = 0;
  for (const Value* value : values) nesting = std::max(nesting, value->nesting());
  return checked_nesting(nesting + 1);
}

int nesting_around(const Value& input, const Arguments& arguments) {
  int nesting = nesting_around({&input});
  for (const Value& value : arguments.positional) nesting = std::max(nesting, nesting_around({&value}));
  for (const auto& [name, value] : arguments.named) nesting = std::max(nesting, nesting_around({&value}));
  return nesting;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return "NoneType";
    case Value::Kind::undefined:
      return "Undefined";
    case Value::Kind::boolean:
      return "bool";
    case Value::Kind::integer:
      return "int";
    case Value::Kind::real:
      return "float";
    case Value::Kind::text:
      return "str";
    case Value::Kind::list:
      return "list";
    case Value::Kind::tuple:
      return "tuple";
    case Value::Kind::dict:
      return "dict";
    case Value::Kind::object:
      break;
  }
  return value.object().type_name();
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
    case Value::Kind::undefined:
      return false;
    case Value::Kind::boolean:
      return value.boolean();
    case Value::Kind::integer:
      return value.integer() != 0;
    case Value::Kind::real:
      return value.real() != 0;
    case Value::Kind::text:
      return !value.text().empty();
    case Value::Kind::list:
    case Value::Kind::tuple:
      return !value.items().empty();
    case Value::Kind::dict:
      return !value.pairs().empty();
    case Value::Kind::object:
      break;
  }
  return value.object().length() != 0;
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return count_code_points(value.text());
  if (value.is_sequence()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.pairs().size());
  const int64_t count = value.is_object() ? value.object().length() : -1;
  if (count < 0) fault("object of type '{}' has no len()", type_name(value));
  return count;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.is_dict() ||
         (value.is_object() && value.object().iterable());
}

Cursor::Cursor(Runtime& runtime, Value source) : runtime_(runtime), source_(std::move(source)) {
  if (!is_iterable(source_)) fault("'{}' object is not iterable", type_name(source_));
}

bool Cursor::next(Value& item) {
  runtime_.budget.step();
  if (source_.is_undefined()) return false;
  if (source_.is_object()) {
    const auto index = static_cast<int64_t>(at_);
    if (!source_.object().next(runtime_, index, item)) return false;
    ++at_;
    return true;
  }
  if (source_.is_text()) {
    const std::string& bytes = source_.text();
    if (at_ >= bytes.size()) return false;
    const size_t begin = at_;
    next_code_point(bytes, at_);
    item = runtime_.text(bytes.substr(begin, at_ - begin));
    return true;
  }
  const size_t size = source_.is_dict() ? source_.pairs().size() : source_.items().size();
  if (at_ >= size) return false;
  item = source_.is_dict() ? source_.pairs()[at_].first : source_.items()[at_];
  ++at_;
  return true;
}

Values to_values(Runtime& runtime, const Value& iterable) {
  if (iterable.is_sequence()) {
    runtime.budget.step(static_cast<int64_t>(iterable.items().size()));
    return iterable.items();
  }
  Values items;
  Cursor cursor(runtime, iterable);
  for (Value item; cursor.next(item);) items.push_back(item);
  return items;
}

Bound::Bound(Arguments& arguments, std::string_view function, std::initializer_list<std::string_view> names,
             size_t required)
    : function_(function), values_(names.size()) {
  if (arguments.positional.size() > names.size())
    fault("{}() takes at most {} arguments ({} given)", function, names.size(), arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) fault("{}() got an unexpected keyword argument '{}'", function, name);
    auto& place = values_[static_cast<size_t>(found - names.begin())];
    if (place) fault("{}() got multiple values for argument '{}'", function, name);
    place = std::move(value);
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) fault("{}() misses the argument '{}'", function, names.begin()[i]);
}

int64_t Bound::integer_or(size_t i, int64_t otherwise) const {
  return has(i) ? to_integer(*values_[i]) : otherwise;
}

bool Bound::truth_or(size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }

const std::string& Bound::text(size_t i) const {
  if (!values_[i] || !values_[i]->is_text())
    fault("{}() wants a str as argument {}, got '{}'", function_, i + 1,
          values_[i] ? type_name(*values_[i]) : "nothing");
  return values_[i]->text();
}

int64_t to_integer(const Value& value) {
  if (value.is_undefined()) fault("{}", value.undefined().message);
  if (!value.is_integral()) fault("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.integer();
}

}  // namespace megatron::chat
