#include "megatron/tokenizers/chat/objects.h"

#include "megatron/tokenizers/chat/operations.h"
#include "megatron/tokenizers/chat/text_form.h"

namespace megatron::chat {

Value make_function(std::string printed, Function::Body body, int nesting) {
  return Value(
      std::shared_ptr<Object>(std::make_shared<Function>(std::move(printed), std::move(body), nesting)));
}

std::string method_name(std::string_view method, std::string_view type) {
  return fmt::format("built-in method {} of {} object{}", method, type, kAddress);
}

Value make_generator(std::string_view printed, Generator::Next next, int nesting) {
  return Value(std::shared_ptr<Object>(std::make_shared<Generator>(printed, std::move(next), nesting)));
}

std::string Namespace::repr(Runtime& runtime) {
  ValuePairs pairs;
  for (const auto& [name, value] : attributes_) pairs.emplace_back(runtime.text(name), value);
  return "<Namespace " + to_repr(runtime, runtime.dict(std::move(pairs))) + ">";
}

bool Namespace::attribute(Runtime&, std::string_view name, Value& result) {
  for (const auto& [key, value] : attributes_)
    if (key == name) return result = value, true;
  return false;
}

void Namespace::set(Runtime& runtime, std::string_view name, Value value) {
  if (name.starts_with("_")) fault("a namespace cannot hold the attribute '{}', which begins with _", name);
  for (auto& [key, held] : attributes_)
    if (key == name) return void(held = std::move(value));
  charges_.emplace_back(runtime.budget, name.size() + 96);
  attributes_.emplace_back(std::string(name), std::move(value));
}

void Namespace::clear() {
  attributes_.clear();
  charges_.clear();
}

std::string Range::repr(Runtime&) {
  return step == 1 ? fmt::format("range({}, {})", start, stop)
                   : fmt::format("range({}, {}, {})", start, stop, step);
}

int64_t Range::length() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

int64_t Range::find(Runtime& runtime, const Value& value) const {
  int64_t place = 0;
  while (place < length() && !equal(runtime, Value(at(place)), value)) ++place;
  return place;
}

bool Range::attribute(Runtime&, std::string_view name, Value& result) {
  if (name == "start") return result = Value(start), true;
  if (name == "stop") return result = Value(stop), true;
  if (name == "step") return result = Value(step), true;
  const bool counts = name == "count";
  if (!counts && name != "index") return false;
  // A method may outlive the value that it was asked of.
  result = make_function(method_name(name, type_name()),
                         [range = *this, counts](Runtime& runtime, Arguments& arguments) {
                           const Bound bound(arguments, counts ? "count" : "index", {"value"}, 1);
                           const int64_t place = range.find(runtime, bound[0]);
                           const bool found = place < range.length();
                           if (counts) return Value(int64_t{found});  // no item comes twice
                           if (!found) fault("the value is not in the range");
                           return Value(place);
                         });
  return true;
}

bool Range::next(Runtime&, int64_t index, Value& result) const {
  if (index >= length()) return false;
  result = Value(at(index));
  return true;
}

Value make_range(Runtime&, Arguments& arguments) {
  constexpr int64_t kMaxItems = 100'000, kMaxBound = int64_t{1} << 60;
  const Values& given = arguments.positional;
  if (!arguments.named.empty()) fault("range() takes no keyword arguments");
  if (given.empty() || given.size() > 3) fault("range() takes 1 to 3 arguments ({} given)", given.size());
  const int64_t start = given.size() > 1 ? to_integer(given[0]) : 0;
  const int64_t stop = to_integer(given[given.size() > 1 ? 1 : 0]);
  const int64_t step = given.size() > 2 ? to_integer(given[2]) : 1;
  if (step == 0) fault("range() arg 3 must not be zero");
  for (int64_t bound : {start, stop, step})
    if (bound > kMaxBound || bound < -kMaxBound) fault("range() cannot reach {}", bound);
  auto range = std::make_shared<Range>(start, stop, step);
  if (range->length() > kMaxItems)
    fault("range() of {} items, at most {} are allowed", range->length(), kMaxItems);
  return Value(std::shared_ptr<Object>(range));
}

std::string DictView::type_name() const {
  return part_ == Part::keys ? "dict_keys" : part_ == Part::values ? "dict_values" : "dict_items";
}

std::string_view DictView::reversed_name() const {
  return part_ == Part::keys     ? "dict_reversekeyiterator object"
         : part_ == Part::values ? "dict_reversevalueiterator object"
                                 : "dict_reverseitemiterator object";
}

std::string DictView::repr(Runtime& runtime) {
  Values items;
  Value item;
  for (int64_t i = 0; next(runtime, i, item); ++i) items.push_back(item);
  return type_name() + "(" + to_repr(runtime, runtime.list(std::move(items))) + ")";
}

bool DictView::next(Runtime& runtime, int64_t index, Value& result) const {
  if (index >= length()) return false;
  const auto& [key, value] = dict_->items[static_cast<size_t>(index)];
  result = part_ == Part::keys ? key : part_ == Part::values ? value : runtime.tuple({key, value});
  return true;
}

}  // namespace megatron::chat
