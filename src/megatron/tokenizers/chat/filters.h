#pragma once

#include <span>
#include <string_view>

#include "megatron/tokenizers/chat/syntax.h"

namespace megatron::chat {

// The filter or test of that name; null where there is none.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

// The parts of the table of filters.
std::span<const NamedFilter> text_filters();
std::span<const NamedFilter> number_filters();
std::span<const NamedFilter> sequence_filters();
std::span<const NamedFilter> selecting_filters();

// str(value) as filters of texts take their input, markup kept.
Value soft_text(Runtime& runtime, const Value& value);

// A text in lower case, anything else as it is: what filters that ignore case compare.
Value folded(Runtime& runtime, const Value& value);

// A getter of `attribute` as filters take it: a path "a.b.0" or an index. Undefined parts become `otherwise`,
// if given.
class AttributePath {
 public:
  AttributePath(Runtime& runtime, const Value& attribute, const Value* otherwise = nullptr);
  Value operator()(Runtime& runtime, Value item) const;

 private:
  Values parts_;
  std::optional<Value> otherwise_;
};

}  // namespace megatron::chat
