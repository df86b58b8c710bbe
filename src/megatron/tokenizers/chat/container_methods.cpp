// Methods of lists, tuples and dicts that do not change them.
#include <algorithm>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"

namespace megatron::chat {
namespace {

Value view(const Value& self, DictView::Part part) {
  return Value(std::shared_ptr<Object>(std::make_shared<DictView>(self.dict(), part)));
}

Value sequence_index(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "index", {"value", "start", "stop"}, 1);
  const Values& items = self.items();
  const auto size = static_cast<int64_t>(items.size());
  auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  const int64_t stop = clamp(bound.integer_or(2, size));
  for (int64_t i = clamp(bound.integer_or(1, 0)); i < stop; ++i)
    if (equal(runtime, items[static_cast<size_t>(i)], bound[0])) return Value(i);
  fault("the value is not in the {}", type_name(self));
}

Value sequence_count(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "count", {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.items()) count += equal(runtime, item, bound[0]);
  return Value(count);
}

Value dict_get(Runtime& runtime, const Value& self, Arguments& arguments) {
  Bound bound(arguments, "get", {"key", "default"}, 1);
  const Value* found = find_key(runtime, *self.dict(), bound[0]);
  return found ? *found : bound.value_or(1, Value());
}

}  // namespace

bool container_method(Runtime& runtime, const Value& self, std::string_view name, Value& result) {
  constexpr std::string_view kChangingLists[] = {"append", "clear", "pop",    "reverse",
                                                 "insert", "sort",  "extend", "remove"};
  constexpr std::string_view kChangingDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  auto is_one_of = [&](auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if ((self.is(Value::Kind::list) && is_one_of(kChangingLists)) ||
      (self.is_dict() && is_one_of(kChangingDicts))) {
    result = runtime.undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(self)));
    return true;
  }
  auto bind = [&](Value (*method)(Runtime&, const Value&, Arguments&)) {
    result = make_function(
        method_name(name, type_name(self)),
        [self, method](Runtime& r, Arguments& a) { return method(r, self, a); }, nesting_around({&self}));
    return true;
  };
  auto copy = [](Runtime&, const Value& itself, Arguments& arguments) {
    Bound(arguments, "copy", {});
    return itself;
  };
  if (self.is_sequence()) {
    if (self.sequence().group && name == "grouper") return result = self.items()[0], true;
    if (self.sequence().group && name == "list") return result = self.items()[1], true;
    if (name == "index") return bind(sequence_index);
    if (name == "count") return bind(sequence_count);
    if (name == "copy" && self.is(Value::Kind::list)) return bind(copy);
    return false;
  }
  if (name == "get") return bind(dict_get);
  if (name == "copy") return bind(copy);
  if (name == "keys")
    return bind([](Runtime&, const Value& itself, Arguments& a) {
      return Bound(a, "keys", {}), view(itself, DictView::Part::keys);
    });
  if (name == "values")
    return bind([](Runtime&, const Value& itself, Arguments& a) {
      return Bound(a, "values", {}), view(itself, DictView::Part::values);
    });
  if (name == "items")
    return bind([](Runtime&, const Value& itself, Arguments& a) {
      return Bound(a, "items", {}), view(itself, DictView::Part::items);
    });
  return false;
}

}  // namespace megatron::chat
