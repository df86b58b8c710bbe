#include "megatron/tokenizers/chat/loop.h"

#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"

namespace megatron::chat {

bool Loop::fetch(Value& item) {
  if (rest_) {
    if (rest_at_ >= rest_->size()) return false;
    item = (*rest_)[rest_at_++];
    return true;
  }
  while (cursor_ && cursor_->next(item))
    if (!keeps_ || keeps_(item)) return true;
  return false;
}

bool Loop::advance(Value& item) {
  if (after_) {
    item = *std::exchange(after_, std::nullopt);
  } else if (!fetch(item)) {
    return false;
  }
  ++index_;
  before_ = std::move(current_);
  current_ = item;
  return true;
}

void Loop::finish() {
  if (!length_) length_ = index_ + 1;
  cursor_.reset();
  iterable_ = Value();
  keeps_ = nullptr;
  recurse_ = nullptr;
  rest_.reset();
  for (auto* held : {&before_, &current_, &after_, &changed_}) held->reset();
}

const std::optional<Value>& Loop::peek() {
  Value item;
  if (!after_ && fetch(item)) after_ = std::move(item);
  return after_;
}

int64_t Loop::total() {
  if (length_) return *length_;
  const bool sized = !iterable_.is_object() || iterable_.object().length() >= 0;
  if (sized && !keeps_) {
    length_ = chat::length(iterable_);
  } else {
    Values items;
    for (Value item; fetch(item);) items.push_back(item);
    length_ = static_cast<int64_t>(items.size()) + index_ + 1 + after_.has_value();
    rest_ = std::move(items);
    rest_at_ = 0;
  }
  return *length_;
}

bool Loop::attribute(Runtime& runtime, std::string_view name, Value& result) {
  if (name == "index") return result = Value(index_ + 1), true;
  if (name == "index0") return result = Value(index_), true;
  if (name == "first") return result = Value(index_ == 0), true;
  if (name == "last") return result = Value(!peek()), true;
  if (name == "length") return result = Value(total()), true;
  if (name == "revindex") return result = Value(total() - index_), true;
  if (name == "revindex0") return result = Value(total() - index_ - 1), true;
  if (name == "depth") return result = Value(depth_ + 1), true;
  if (name == "depth0") return result = Value(depth_), true;
  if (name == "previtem") {
    result = before_ ? *before_ : runtime.undefined("there is no previous item");
    return true;
  }
  if (name == "nextitem") {
    result = peek() ? *after_ : runtime.undefined("there is no next item");
    return true;
  }
  if (name == "cycle") {
    result =
        make_function("bound method LoopContext.cycle", [index = index_](Runtime&, Arguments& arguments) {
          if (arguments.positional.empty()) fault("no items for cycling given");
          return arguments.positional[static_cast<size_t>(index) % arguments.positional.size()];
        });
    return true;
  }
  if (name == "changed") {
    result = make_function("bound method LoopContext.changed",
                           [loop = shared_from_this()](Runtime& r, Arguments& arguments) {
                             Value given = r.tuple(std::move(arguments.positional));
                             if (loop->changed_ && equal(r, *loop->changed_, given)) return Value(false);
                             loop->changed_ = std::move(given);
                             return Value(true);
                           });
    return true;
  }
  return false;
}

bool Loop::next(Runtime& runtime, int64_t, Value& result) const {
  const auto self = std::const_pointer_cast<Loop>(shared_from_this());
  Value item;
  if (!self->advance(item)) return false;
  result = runtime.tuple({std::move(item), Value(std::shared_ptr<Object>(self))});
  return true;
}

Value Loop::call(Runtime&, Arguments arguments) {
  if (!recurse_) fault("The loop must have the 'recursive' marker to be called recursively.");
  Bound bound(arguments, "loop", {"iterable"}, 1);
  return recurse_(bound[0], depth_ + 1);
}

}  // namespace megatron::chat
