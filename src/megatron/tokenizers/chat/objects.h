#pragma once

#include <functional>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// A function or a bound method.
class Function : public Object {
 public:
  using Body = std::function<Value(Runtime&, Arguments&)>;
  Function(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Runtime&) override { return "<built-in method " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override { return body_(runtime, arguments); }

 private:
  std::string name_;
  Body body_;
};
Value make_function(std::string name, Function::Body body);

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
  bool iterable() const override { return true; }
  bool next(Runtime&, int64_t index, Value& result) const override;
  int64_t length() const override;
  int64_t at(int64_t index) const { return start + index * step; }

  const int64_t start, stop, step;
};
Value make_range(Runtime& runtime, Arguments& arguments);

// What dict.keys(), values() and items() give.
class DictView : public Object {
 public:
  enum class Part { keys, values, items };
  DictView(std::shared_ptr<const Mapping> dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string type_name() const override;
  std::string repr(Runtime& runtime) override;
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t index, Value& result) const override;
  int64_t length() const override { return static_cast<int64_t>(dict_->items.size()); }
  Part part() const { return part_; }
  const std::shared_ptr<const Mapping>& dict() const { return dict_; }

 private:
  std::shared_ptr<const Mapping> dict_;
  Part part_;
};

// A generator: items are made when they are asked for, once.
class Generator : public Object {
 public:
  using Next = std::function<bool(Runtime&, Value&)>;
  explicit Generator(Next next) : next_(std::move(next)) {}
  std::string type_name() const override { return "generator"; }
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t, Value& result) const override { return next_(runtime, result); }

 private:
  Next next_;
};
Value make_generator(Generator::Next next);

}  // namespace megatron::chat
