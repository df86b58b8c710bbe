#pragma once

#include <functional>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// How Python prints that an object lies somewhere; the address is made up and has the usual length.
inline constexpr std::string_view kAddress = " at 0x7f0000000000";

// A function or a bound method. It prints as Python's object `printed`.
class Function : public Object {
 public:
  using Body = std::function<Value(Runtime&, Arguments&)>;
  Function(std::string printed, Body body, int nesting)
      : printed_(std::move(printed)), body_(std::move(body)), nesting_(nesting) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Runtime&) override { return "<" + printed_ + ">"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override { return body_(runtime, arguments); }
  int nesting() const override { return nesting_; }

 private:
  std::string printed_;
  Body body_;
  int nesting_;
};
// `nesting` is that of the values that the body refers to.
Value make_function(std::string printed, Function::Body body, int nesting = 0);
// How a method of a value of this type prints.
std::string method_name(std::string_view method, std::string_view type);

// Attributes that `set` may change: the one thing of a template that is mutable.
class Namespace : public Object {
 public:
  explicit Namespace(Charge charge) { charges_.push_back(std::move(charge)); }
  std::string type_name() const override { return "Namespace"; }
  std::string repr(Runtime& runtime) override;
  bool attribute(Runtime& runtime, std::string_view name, Value& result) override;
  void set(Runtime& runtime, std::string_view name, Value value);
  void clear();

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
  std::vector<Charge> charges_;
};

// range(start, stop, step).
class Range : public Object {
 public:
  Range(int64_t start, int64_t stop, int64_t step) : start(start), stop(stop), step(step) {}
  std::string type_name() const override { return "range"; }
  std::string repr(Runtime&) override;
  bool attribute(Runtime& runtime, std::string_view name, Value& result) override;
  bool iterable() const override { return true; }
  bool next(Runtime&, int64_t index, Value& result) const override;
  int64_t length() const override;
  int64_t at(int64_t index) const { return start + index * step; }

  const int64_t start, stop, step;

 private:
  // The place of the value; the length where there is none.
  int64_t find(Runtime& runtime, const Value& value) const;
};
Value make_range(Runtime& runtime, Arguments& arguments);

// What dict.keys(), values() and items() give.
class DictView : public Object {
 public:
  enum class Part { keys, values, items };
  DictView(std::shared_ptr<const Mapping> dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string type_name() const override;
  std::string_view reversed_name() const;  // what Python prints for its items in reverse
  std::string repr(Runtime& runtime) override;
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t index, Value& result) const override;
  int64_t length() const override { return static_cast<int64_t>(dict_->items.size()); }
  int nesting() const override { return dict_->nesting; }

 private:
  std::shared_ptr<const Mapping> dict_;
  Part part_;
};

// A generator: items are made when they are asked for, once. It prints as Python's object `printed`.
class Generator : public Object {
 public:
  using Next = std::function<bool(Runtime&, Value&)>;
  Generator(std::string_view printed, Next next, int nesting)
      : printed_(printed), next_(std::move(next)), nesting_(nesting) {}
  std::string type_name() const override { return "generator"; }
  std::string repr(Runtime&) override { return fmt::format("<{}{}>", printed_, kAddress); }
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t, Value& result) const override { return next_(runtime, result); }
  int nesting() const override { return nesting_; }

 private:
  std::string_view printed_;
  Next next_;
  int nesting_;
};
// `printed` is a literal, `nesting` that of the values that it reads from.
Value make_generator(std::string_view printed, Generator::Next next, int nesting);

}  // namespace megatron::chat
