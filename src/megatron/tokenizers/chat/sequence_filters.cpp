// Filters that look at a whole iterable at once.
#include <algorithm>

#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/split.h"
#include "megatron/tokenizers/chat/text_form.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron::chat {
namespace {

Value length_of(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "length", {});
  if (input.is_text()) runtime.budget.step(static_cast<int64_t>(input.text().size() / 16));
  return Value(length(input));
}

Value first(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "first", {});
  Cursor cursor(runtime, input);
  Value item;
  return cursor.next(item) ? item : runtime.undefined("No first item, sequence was empty.");
}

Value last(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "last", {});
  if (!is_iterable(input) || (input.is_object() && !input.object().reversible()))
    fault("'{}' object is not reversible", type_name(input));
  if (input.is_undefined() || input.is_text() || input.is_sequence()) {
    if (!truth(input)) return runtime.undefined("No last item, sequence was empty.");
    return get_item(runtime, input, Value(-1));
  }
  const Values values = to_values(runtime, input);
  return values.empty() ? runtime.undefined("No last item, sequence was empty.") : values.back();
}

Value list(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound(arguments, "list", {});
  return runtime.list(to_values(runtime, input));
}

Value join(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "join", {"d", "attribute"});
  const std::string between = bound.has(0) ? to_text(runtime, bound[0]) : "";
  AttributePath path(runtime, bound.value_or(1, Value()));
  TextBuilder out(runtime.budget);
  Cursor cursor(runtime, input);
  bool begun = false;
  for (Value item; cursor.next(item); begun = true) {
    if (begun) out.add(between);
    append_text(runtime, out, path(runtime, item));
  }
  return runtime.text(out.take());
}

Value sort(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.truth_or(1, false);
  std::vector<AttributePath> paths;
  if (bound.has_value(2) && bound[2].is_text()) {
    const std::string_view comma = ",";
    for (std::string_view part : split(runtime.budget, bound[2].text(), &comma, -1, false))
      paths.emplace_back(runtime, runtime.text(std::string(part)));
  } else {
    paths.emplace_back(runtime, bound.value_or(2, Value()));
  }
  Values values = to_values(runtime, input), keys;
  for (const Value& value : values) {
    Values key;
    for (const AttributePath& path : paths)
      key.push_back(case_sensitive ? path(runtime, value) : folded(runtime, path(runtime, value)));
    keys.push_back(runtime.list(std::move(key)));
  }
  return runtime.list(sort_by(runtime, std::move(values), std::move(keys), bound.truth_or(0, false)));
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"});
  AttributePath path(runtime, bound.value_or(1, Value()));
  Cursor cursor(runtime, input);
  std::optional<Value> best, best_key;
  for (Value item; cursor.next(item);) {
    Value key = path(runtime, item);
    if (!bound.truth_or(0, false)) key = folded(runtime, key);
    if (best && !(largest ? less(runtime, *best_key, key) : less(runtime, key, *best_key))) continue;
    best = item;
    best_key = std::move(key);
  }
  return best ? *best : runtime.undefined("No aggregated item, sequence was empty.");
}

Value sum(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "sum", {"attribute", "start"});
  AttributePath path(runtime, bound.value_or(0, Value()));
  Value total = bound.value_or(1, Value(0));
  if (total.is_text()) fault("sum() can't sum strings; use join");
  Cursor cursor(runtime, input);
  for (Value item; cursor.next(item);)
    total = apply(runtime, BinaryOperator::add, total, path(runtime, item));
  return total;
}

Value groupby(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Value otherwise = bound.value_or(1, Value());
  AttributePath path(runtime, bound[0], otherwise.is_none() ? nullptr : &otherwise);
  const bool case_sensitive = bound.truth_or(2, false);
  auto key_of = [&](const Value& item) {
    return case_sensitive ? path(runtime, item) : folded(runtime, path(runtime, item));
  };
  Values values = to_values(runtime, input), keys;
  for (const Value& value : values) keys.push_back(key_of(value));
  values = sort_by(runtime, std::move(values), std::move(keys), false);
  Values groups, group;
  std::optional<Value> current;
  auto close = [&] {
    if (group.empty()) return;
    const Value name = case_sensitive ? *current : path(runtime, group[0]);
    groups.push_back(runtime.tuple({name, runtime.list(std::exchange(group, {}))}, true));
  };
  for (Value& value : values) {
    Value key = key_of(value);
    if (!current || !equal(runtime, *current, key)) close(), current = std::move(key);
    group.push_back(std::move(value));
  }
  close();
  return runtime.list(std::move(groups));
}

Value dictsort(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") fault("You can only sort by either \"key\" or \"value\"");
  if (!input.is_dict()) {
    if (input.is_undefined()) fault("{}", input.undefined().message);
    fault("'{}' object has no attribute 'items'", type_name(input));
  }
  Values pairs, keys;
  for (const auto& [key, value] : input.pairs()) {
    pairs.push_back(runtime.tuple({key, value}));
    const Value& order = by == "key" ? key : value;
    keys.push_back(bound.truth_or(0, false) ? order : folded(runtime, order));
  }
  return runtime.list(sort_by(runtime, std::move(pairs), std::move(keys), bound.truth_or(2, false)));
}

Value attribute(Runtime& runtime, const Value& input, Arguments& arguments) {
  Bound bound(arguments, "attr", {"name"}, 1);
  Value result;
  if (find_attribute(runtime, input, bound.text(0), result)) return result;
  return runtime.undefined(fmt::format("'{} object' has no attribute '{}'", type_name(input), bound.text(0)));
}

constexpr NamedFilter kFilters[] = {
    {"attr", attribute},  {"count", length_of},   {"dictsort", dictsort},  {"first", first},
    {"groupby", groupby}, {"join", join},         {"last", last},          {"length", length_of},
    {"list", list},       {"max", extreme<true>}, {"min", extreme<false>}, {"sort", sort},
    {"sum", sum},
};

}  // namespace

std::span<const NamedFilter> sequence_filters() { return kFilters; }

AttributePath::AttributePath(Runtime& runtime, const Value& attribute, const Value* otherwise) {
  if (otherwise) otherwise_ = *otherwise;
  if (attribute.is_none()) return;
  if (!attribute.is_text()) {
    parts_.push_back(attribute);
    return;
  }
  const std::string_view dot = ".";
  for (std::string_view part : split(runtime.budget, attribute.text(), &dot, -1, false)) {
    const bool number = !part.empty() && part.size() < 18 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    parts_.push_back(number ? Value(int64_t{std::stoll(std::string(part))})
                            : runtime.text(std::string(part)));
  }
}

Value AttributePath::operator()(Runtime& runtime, Value item) const {
  for (const Value& part : parts_) {
    item = get_item(runtime, item, part);
    if (otherwise_ && item.is_undefined()) item = *otherwise_;
  }
  return item;
}

Value folded(Runtime& runtime, const Value& value) {
  return value.is_text() ? runtime.text(change_case(value.text(), Case::lower)) : value;
}

}  // namespace megatron::chat
