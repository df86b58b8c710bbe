#pragma once

#include <functional>
#include <optional>

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// The `loop` of a for statement. Items are fetched one by one, as late as possible, since a condition of the
// statement may read a namespace that its body changes.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  // The statement's condition, which may be empty. It may give the item another form.
  using Keeps = std::function<bool(Value& item)>;
  using Recurse =
      std::function<Value(Value iterable, int depth)>;  // renders the statement again; may be empty
  Loop(Runtime& runtime, Value iterable, Keeps keeps, Recurse recurse, int depth)
      : iterable_(std::move(iterable)),
        cursor_(Cursor(runtime, iterable_)),
        keeps_(std::move(keeps)),
        recurse_(std::move(recurse)),
        depth_(depth) {}

  // Moves to the next item; false at the end.
  bool advance(Value& item);
  // Drops what refers to the statement, for a loop that is kept beyond it.
  void finish();

  std::string type_name() const override { return "LoopContext"; }
  std::string repr(Runtime&) override { return fmt::format("<LoopContext {}/{}>", index_ + 1, total()); }
  bool attribute(Runtime& runtime, std::string_view name, Value& result) override;
  bool callable() const override { return true; }
  // Iteration moves the statement itself on, and gives items with the loop beside them.
  bool iterable() const override { return true; }
  bool next(Runtime& runtime, int64_t index, Value& result) const override;
  int64_t length() const override { return const_cast<Loop*>(this)->total(); }
  bool reversible() const override { return false; }
  Value call(Runtime& runtime, Arguments arguments) override;

 private:
  bool fetch(Value& item);
  const std::optional<Value>& peek();
  int64_t total();

  Value iterable_;
  std::optional<Cursor> cursor_;
  Keeps keeps_;
  Recurse recurse_;
  int depth_;
  int64_t index_ = -1;
  std::optional<Value> before_, current_, after_, changed_;
  std::optional<Values> rest_;  // fetched to know how many there are
  size_t rest_at_ = 0;
  std::optional<int64_t> length_;
};

}  // namespace megatron::chat
