#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/tokenizers/chat/budget.h"

namespace megatron::chat {

class Value;
class Object;
class Runtime;

using Values = std::vector<Value>;
using ValuePairs = std::vector<std::pair<Value, Value>>;

// What a missing name or attribute gives: empty where it is printed, an error with this message where it is
// used.
struct Undefined {
  std::string message;
};

// UTF-8. `markup` marks text that is escaped already, which escapes what it is joined with.
struct Text {
  std::string bytes;
  bool markup = false;
  Charge charge;
};

// The items of a list or a tuple; `nesting` levels of containers, itself included. A pair of `groupby` has
// names.
struct Sequence {
  Values items;
  int nesting = 1;
  bool group = false;
  Charge charge;
};

// A dict in the order of insertion.
struct Mapping {
  ValuePairs items;
  int nesting = 1;
  Charge charge;
};

// A value of the template language: Python's scalars and containers, none of which a template can change, and
// objects such as namespaces, macros and iterators. A copy shares what it refers to.
class Value {
 public:
  enum class Kind { none, undefined, boolean, integer, real, text, list, tuple, dict, object };

  Value() = default;  // None
  Value(bool value) : data_(value) {}
  Value(int value) : data_(int64_t{value}) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::shared_ptr<const Undefined> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Text> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Mapping> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Object> value) : data_(std::move(value)) {}
  template <class T>
  Value(const T*) = delete;  // would be a bool

  static Value list(std::shared_ptr<const Sequence> items) { return Value(Data(List{std::move(items)})); }
  static Value tuple(std::shared_ptr<const Sequence> items) { return Value(Data(Tuple{std::move(items)})); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_none() const { return is(Kind::none); }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_text() const { return is(Kind::text); }
  bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }  // a bool is an int
  bool is_number() const { return is_integral() || is(Kind::real); }
  bool is_sequence() const { return is(Kind::list) || is(Kind::tuple); }
  bool is_dict() const { return is(Kind::dict); }
  bool is_object() const { return is(Kind::object); }

  // Each wants the kind to be right.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is(Kind::boolean) ? int64_t{boolean()} : std::get<int64_t>(data_); }
  double real() const { return is(Kind::real) ? std::get<double>(data_) : static_cast<double>(integer()); }
  const std::string& text() const { return std::get<std::shared_ptr<const Text>>(data_)->bytes; }
  bool markup() const { return is_text() && std::get<std::shared_ptr<const Text>>(data_)->markup; }
  const Undefined& undefined() const { return *std::get<std::shared_ptr<const Undefined>>(data_); }
  const Sequence& sequence() const {
    return is(Kind::list) ? *std::get<List>(data_).items : *std::get<Tuple>(data_).items;
  }
  const Values& items() const { return sequence().items; }
  const std::shared_ptr<const Mapping>& dict() const {
    return std::get<std::shared_ptr<const Mapping>>(data_);
  }
  const ValuePairs& pairs() const { return dict()->items; }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  template <class T>
  T* object_as() const {  // null where it is something else
    return is_object() ? dynamic_cast<T*>(&object()) : nullptr;
  }
  // The address that two copies share; null for scalars.
  const void* identity() const;
  // How many containers are inside each other.
  int nesting() const;

 private:
  struct List {
    std::shared_ptr<const Sequence> items;
  };
  struct Tuple {
    std::shared_ptr<const Sequence> items;
  };
  using Data = std::variant<std::monostate, std::shared_ptr<const Undefined>, bool, int64_t, double,
                            std::shared_ptr<const Text>, List, Tuple, std::shared_ptr<const Mapping>,
                            std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// What a call is given.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Anything that is no scalar and no plain container.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::string repr(Runtime&) { return "<" + type_name() + " object>"; }
  // An attribute; false where there is none.
  virtual bool attribute(Runtime&, std::string_view /*name*/, Value& /*result*/) { return false; }
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, Arguments arguments);  // throws unless it is overridden
  // Iteration: `next` is given the number of items seen so far; a generator moves on by itself.
  virtual bool iterable() const { return false; }
  virtual bool next(Runtime&, int64_t /*index*/, Value& /*result*/) const { return false; }
  virtual int64_t length() const { return -1; }  // -1: has none
  virtual bool reversible() const { return length() >= 0; }
  virtual int nesting() const { return 0; }  // of the containers that it refers to
};

}  // namespace megatron::chat
