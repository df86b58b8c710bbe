#pragma once

#include <functional>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// A function or a bound method.
class Function : public Object {
 public:
  using Body = std::function<Value(Runtime&, Arguments&)>;
  Function(std::string name, Body body, int nesting)
      : name_(std::move(name)), body_(std::move(body)), nesting_(nesting) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Runtime&) override { return "<built-in method " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Arguments arguments) override { return body_(runtime, arguments); }
  int nesting() const override { return nesting_; }

 private:
  std::string name_;
  Body body_;
  int nesting_;
};
// `nesting` is that of the values that the body refers to.
Value make_function(std::string name, Function::Body body, int nesting = 0);

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
  int nesting() const override { return dict_->nesting; }

 private:
  std::shared_ptr<const Mapping> dict_;
  Part part_;
};

// A generator: items are made when they are asked for, once.
class Generator : public Object {
 public:
  using Next = std::function<bool(Runtime&, Value&)>;
  Generator(Next next, int nesting) : next_(std::move(next)), nesting_(nesting) {}
  std::string type_name() const override { return "generator"; }
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t, Value& result) const override { return next_(runtime, result); }
  int nesting() const override { return nesting_; }

 private:
  Next next_;
  int nesting_;
};
// `nesting` is that of the values that it reads from.
Value make_generator(Generator::Next next, int nesting);

}  // namespace megatron::chat
