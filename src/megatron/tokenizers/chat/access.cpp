#include "megatron/tokenizers/chat/access.h"

#include <algorithm>

#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

std::string described(const Value& value) {
  if (value.is_none()) return "None";
  return type_name(value) + " object";
}

Value no_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  return runtime.undefined(fmt::format("'{}' has no attribute '{}'", described(value), name));
}

// The item of a container; false where there is none.
bool find_item(Runtime& runtime, const Value& value, const Value& key, Value& result) {
  if (value.is_dict()) {
    if (key.is(Value::Kind::list) || key.is_dict()) return false;
    const Value* found = find_key(runtime, *value.dict(), key);
    if (found) result = *found;
    return found != nullptr;
  }
  if (!key.is_integral()) return false;
  int64_t index = key.integer();
  const auto* range = value.object_as<Range>();
  if (!value.is_text() && !value.is_sequence() && !range) return false;
  const int64_t size = length(value);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return false;
  if (value.is_sequence()) {
    result = value.items()[static_cast<size_t>(index)];
  } else if (range) {
    result = Value(range->at(index));
  } else {
    runtime.budget.step(index / 16);
    size_t begin = byte_offset(value.text(), index), end = begin;
    next_code_point(value.text(), end);
    result = runtime.text(value.text().substr(begin, end - begin), value.markup());
  }
  return true;
}

// Where a slice goes: `count` items from `start` on, `step` apart, before `stop`.
struct SliceRange {
  int64_t start, stop, count, step;
};

int64_t slice_bound(const Value& bound) {
  if (bound.is_undefined() || !bound.is_integral())
    fault("slice indices must be integers or None, got '{}'", type_name(bound));
  return bound.integer();
}

SliceRange slice_range(int64_t size, const Value& start, const Value& stop, const Value& step) {
  const int64_t by = step.is_none() ? 1 : slice_bound(step);
  if (by == 0) fault("slice step cannot be zero");
  auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    int64_t at = slice_bound(bound);
    if (at < 0) at = at < -size ? (by < 0 ? -1 : 0) : at + size;
    return std::min(at, by < 0 ? size - 1 : size);
  };
  const int64_t from = clamp(start, by < 0 ? size - 1 : 0), to = clamp(stop, by < 0 ? -1 : size);
  int64_t count = 0;
  if (by > 0 && from < to) count = (to - from - 1) / by + 1;
  if (by < 0 && from > to) count = (from - to - 1) / (by == INT64_MIN ? INT64_MAX : -by) + 1;
  return {from, to, count, by};
}

}  // namespace

bool find_attribute(Runtime& runtime, const Value& value, std::string_view name, Value& result) {
  if (value.is_undefined()) fault("{}", value.undefined().message);
  if (name.starts_with("__") && name.ends_with("__") && !value.object_as<Namespace>()) {
    result = runtime.undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
    return true;
  }
  if (value.is_text()) return text_method(value, name, result);
  if (value.is_sequence() || value.is_dict()) return container_method(runtime, value, name, result);
  return value.is_object() && value.object().attribute(runtime, name, result);
}

Value get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  Value result;
  if (find_attribute(runtime, value, name, result)) return result;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.pairs()) {
      runtime.budget.step();
      if (key.is_text() && key.text() == name) return item;
    }
  }
  return no_attribute(runtime, value, name);
}

Value get_item(Runtime& runtime, const Value& value, const Value& key) {
  if (value.is_undefined()) fault("{}", value.undefined().message);
  Value result;
  if (find_item(runtime, value, key, result)) return result;
  if (key.is_text()) {
    if (find_attribute(runtime, value, key.text(), result)) return result;
    return no_attribute(runtime, value, key.text());
  }
  return runtime.undefined(fmt::format("{} has no element {}", described(value), to_repr(runtime, key)));
}

Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  if (value.is_undefined()) fault("{}", value.undefined().message);
  const auto* range = value.object_as<Range>();
  if (!value.is_text() && !value.is_sequence() && !range)
    fault("'{}' object cannot be sliced", type_name(value));
  const SliceRange part = slice_range(length(value), start, stop, step);
  runtime.budget.step(part.count / 8);
  if (range)
    return Value(std::shared_ptr<Object>(
        std::make_shared<Range>(range->at(part.start), range->at(part.stop), range->step * part.step)));
  if (value.is_text()) {
    const std::string& bytes = value.text();
    runtime.budget.step(static_cast<int64_t>(bytes.size() / 16));
    if (part.step == 1) {
      const size_t begin = byte_offset(bytes, part.start);
      const size_t size = byte_offset(std::string_view(bytes).substr(begin), part.count);
      return runtime.text(bytes.substr(begin, size), value.markup());
    }
    Charge charge(runtime.budget, bytes.size() * sizeof(char32_t));
    const std::vector<char32_t> points = to_code_points(bytes);
    std::string out;
    for (int64_t i = 0; i < part.count; ++i)
      append_code_point(out, points[static_cast<size_t>(part.start + i * part.step)]);
    return runtime.text(std::move(out), value.markup());
  }
  Values items;
  Charge charge(runtime.budget, static_cast<size_t>(part.count) * sizeof(Value));
  items.reserve(static_cast<size_t>(part.count));
  for (int64_t i = 0; i < part.count; ++i)
    items.push_back(value.items()[static_cast<size_t>(part.start + i * part.step)]);
  return value.is(Value::Kind::list) ? runtime.list(std::move(items)) : runtime.tuple(std::move(items));
}

}  // namespace megatron::chat
