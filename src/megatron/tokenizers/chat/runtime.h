#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/chat/template_error.h"
#include "megatron/tokenizers/chat/value.h"

namespace megatron::chat {

class Namespace;

// What one rendering shares: its budget, and the makers of values that count against it.
class Runtime {
 public:
  Runtime(const ChatLimits& limits, std::optional<std::chrono::system_clock::time_point> now)
      : budget(limits), now(now.value_or(std::chrono::system_clock::now())) {}
  // Namespaces may refer to each other in circles, so they are emptied at the end.
  ~Runtime();

  Value text(std::string bytes, bool markup = false);
  Value list(Values items);
  Value tuple(Values items, bool group = false);
  Value dict(ValuePairs items);
  Value undefined(std::string message);
  Value make_namespace();
  Value from_json(const Json& json);

  Budget budget;
  const std::chrono::system_clock::time_point now;  // what strftime_now tells

 private:
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// The levels of what holds these values; an error where they are too many to be freed without going deep into
// the stack.
int nesting_around(std::initializer_list<const Value*> values);
int nesting_around(const Value& input, const Arguments& arguments);

// Python's name of a value's type, as error messages tell it.
std::string type_name(const Value& value);

// bool(value) of Python.
bool truth(const Value& value);

// len(value); an error for what has no length.
int64_t length(const Value& value);

// Goes through an iterable once.
class Cursor {
 public:
  Cursor(Runtime& runtime, Value source);  // an error where it cannot be iterated over
  bool next(Value& item);

 private:
  Runtime& runtime_;
  Value source_;
  size_t at_ = 0;
};
bool is_iterable(const Value& value);
Values to_values(Runtime& runtime, const Value& iterable);

// The arguments of a call by position or name. An error where one is missing, unknown or given twice.
class Bound {
 public:
  Bound(Arguments& arguments, std::string_view function, std::initializer_list<std::string_view> names,
        size_t required = 0);

  bool has(size_t i) const { return values_[i].has_value(); }
  bool has_value(size_t i) const { return has(i) && !values_[i]->is_none(); }  // given, and not None
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value value_or(size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  int64_t integer_or(size_t i, int64_t otherwise) const;
  bool truth_or(size_t i, bool otherwise) const;
  const std::string& text(size_t i) const;  // an error unless it is one

 private:
  std::string_view function_;
  std::vector<std::optional<Value>> values_;
};

// The integer that an argument must be.
int64_t to_integer(const Value& value);

}  // namespace megatron::chat
