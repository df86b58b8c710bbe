// Filters that go through an iterable and give what they find as they are asked for it.
#include "megatron/tokenizers/chat/access.h"
#include "megatron/tokenizers/chat/filters.h"
#include "megatron/tokenizers/chat/objects.h"
#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {
namespace {

// A generator over `input`, begun when its first item is asked for. `each` says whether an item has a result.
template <class Each>
Value lazily(std::string_view printed, const Value& input, int nesting, Each each) {
  auto cursor = std::make_shared<std::optional<Cursor>>();
  return make_generator(
      printed,
      [input, cursor, each](Runtime& runtime, Value& result) {
        Level level(runtime.budget);  // generators may read from each other
        if (!truth(input)) return false;
        if (!*cursor) cursor->emplace(runtime, input);
        for (Value item; (*cursor)->next(item);)
          if (each(runtime, item, result)) return true;
        return false;
      },
      nesting);
}

Value map(Runtime& runtime, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  if (arguments.positional.empty() && !arguments.named.empty()) {
    std::optional<Value> attribute, otherwise;
    for (auto& [name, value] : arguments.named) {
      if (name != "attribute" && name != "default") fault("Unexpected keyword argument '{}'", name);
      (name == "attribute" ? attribute : otherwise) = value;
    }
    if (otherwise && otherwise->is_none()) otherwise.reset();
    if (!attribute) fault("map requires a filter argument");
    AttributePath path(runtime, *attribute, otherwise ? &*otherwise : nullptr);
    return lazily(
        "generator object sync_do_map", input, nesting,
        [path](Runtime& r, const Value& item, Value& result) { return result = path(r, item), true; });
  }
  if (arguments.positional.empty()) fault("map requires a filter argument");
  const Value name = arguments.positional[0];
  Arguments rest{Values(arguments.positional.begin() + 1, arguments.positional.end()), arguments.named};
  const FilterFunction filter = name.is_text() ? find_filter(name.text()) : nullptr;
  return lazily("generator object sync_do_map", input, nesting,
                [filter, name, rest](Runtime& r, const Value& item, Value& result) {
                  if (!filter) fault("No filter named {}.", to_repr(r, name));
                  Arguments given = rest;
                  return result = filter(r, item, given), true;
                });
}

template <bool keep, bool by_attribute>
Value select(Runtime& runtime, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Values given = std::move(arguments.positional);
  std::optional<AttributePath> path;
  if (by_attribute) {
    if (given.empty()) fault("Missing parameter for attribute name");
    path.emplace(runtime, given[0]);
    given.erase(given.begin());
  }
  if (given.empty())
    return lazily("generator object select_or_reject", input, nesting,
                  [path](Runtime& r, const Value& item, Value& result) {
                    return truth(path ? (*path)(r, item) : item) == keep ? (result = item, true) : false;
                  });
  const Value name = given[0];
  const TestFunction test = name.is_text() ? find_test(name.text()) : nullptr;
  Arguments rest{Values(given.begin() + 1, given.end()), std::move(arguments.named)};
  return lazily("generator object select_or_reject", input, nesting,
                [path, name, test, rest](Runtime& r, const Value& item, Value& result) {
                  if (!test) fault("No test named {}.", to_repr(r, name));
                  Arguments once = rest;
                  return test(r, path ? (*path)(r, item) : item, once) == keep ? (result = item, true)
                                                                               : false;
                });
}

Value unique(Runtime& runtime, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Bound bound(arguments, "unique", {"case_sensitive", "attribute"});
  const bool case_sensitive = bound.truth_or(0, false);
  AttributePath path(runtime, bound.value_or(1, Value()));
  auto seen = std::make_shared<Values>();
  auto cursor = std::make_shared<std::optional<Cursor>>();
  return make_generator(
      "generator object sync_do_unique",
      [=](Runtime& r, Value& result) {
        Level level(r.budget);
        if (!*cursor) cursor->emplace(r, input);
        for (Value item; (*cursor)->next(item);) {
          Value key = path(r, item);
          if (!case_sensitive) key = folded(r, key);
          require_hashable(r, key);
          bool known = false;
          for (const Value& other : *seen) known = known || equal(r, key, other);
          if (known) continue;
          seen->push_back(std::move(key));
          return result = item, true;
        }
        return false;
      },
      nesting);
}

Value batch(Runtime&, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Bound bound(arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t count = to_integer(bound[0]);
  const Value fill = bound.value_or(1, Value());
  auto cursor = std::make_shared<std::optional<Cursor>>();
  auto held = std::make_shared<std::optional<Value>>();  // the first item of the next batch
  return make_generator(
      "generator object do_batch",
      [=](Runtime& runtime, Value& result) {
        Level level(runtime.budget);
        if (!*cursor) cursor->emplace(runtime, input);
        Values line;
        if (*held) line.push_back(*std::exchange(*held, std::nullopt));
        bool full = false;
        for (Value item; !full && (*cursor)->next(item);) {
          full = static_cast<int64_t>(line.size()) == count && !(line.empty() && count == 0);
          if (full) {
            *held = item;
          } else {
            line.push_back(item);
          }
        }
        if (line.empty()) return false;
        if (!full && !fill.is_none())
          while (static_cast<int64_t>(line.size()) < count) runtime.budget.step(), line.push_back(fill);
        return result = runtime.list(std::move(line)), true;
      },
      nesting);
}

Value slices(Runtime&, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Bound bound(arguments, "slice", {"slices", "fill_with"}, 1);
  const int64_t count = to_integer(bound[0]);
  const Value fill = bound.value_or(1, Value());
  auto items = std::make_shared<std::optional<Values>>();
  auto number = std::make_shared<int64_t>(0);
  auto offset = std::make_shared<int64_t>(0);
  return make_generator(
      "generator object sync_do_slice",
      [=](Runtime& r, Value& result) {
        if (!*items) *items = to_values(r, input);
        if (count == 0) fault("integer division or modulo by zero");
        if (*number >= count) return false;
        const auto size = static_cast<int64_t>((*items)->size());
        const int64_t each = size / count, extra = size % count, i = (*number)++;
        const int64_t begin = *offset + i * each;
        if (i < extra) ++*offset;
        const int64_t end = *offset + (i + 1) * each;
        Values part((*items)->begin() + begin, (*items)->begin() + end);
        if (!fill.is_none() && i >= extra) part.push_back(fill);
        return result = r.list(std::move(part)), true;
      },
      nesting);
}

Value items(Runtime&, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Bound(arguments, "items", {});
  auto at = std::make_shared<int64_t>(0);
  return make_generator(
      "generator object do_items",
      [=](Runtime& runtime, Value& result) {
        if (input.is_undefined()) return false;
        if (!input.is_dict()) fault("Can only get item pairs from a mapping.");
        return DictView(input.dict(), DictView::Part::items).next(runtime, (*at)++, result);
      },
      nesting);
}

// What Python prints for reversed(input).
std::string_view reversed_name(const Value& input) {
  if (input.is(Value::Kind::list)) return "list_reverseiterator object";
  if (input.object_as<Range>()) return "range_iterator object";
  if (const auto* view = input.object_as<DictView>()) return view->reversed_name();
  return input.is_dict() ? "dict_reversekeyiterator object" : "reversed object";
}

Value reverse(Runtime& runtime, const Value& input, Arguments& arguments) {
  const int nesting = nesting_around(input, arguments);
  Bound(arguments, "reverse", {});
  if (input.is_text()) return get_slice(runtime, input, Value(), Value(), Value(-1));
  if (!is_iterable(input)) fault("argument must be iterable");
  Values values = to_values(runtime, input);
  std::reverse(values.begin(), values.end());
  if (input.is_object() && !input.object().reversible()) return runtime.list(std::move(values));
  auto at = std::make_shared<size_t>(0);
  return make_generator(
      reversed_name(input),
      [values = std::move(values), at](Runtime&, Value& result) {
        return *at < values.size() ? (result = values[(*at)++], true) : false;
      },
      nesting);
}

constexpr NamedFilter kFilters[] = {
    {"batch", batch},
    {"items", items},
    {"map", map},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"slice", slices},
    {"unique", unique},
};

}  // namespace

std::span<const NamedFilter> selecting_filters() { return kFilters; }

}  // namespace megatron::chat
