#pragma once

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

enum class BinaryOperator { add, subtract, multiply, divide, floor_divide, modulo, power };

// Python's arithmetic on numbers, texts and sequences; an error where it would raise.
Value apply(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right);
Value negate(const Value& value);
Value plus(const Value& value);

// left == right; never an error.
bool equal(Runtime& runtime, const Value& left, const Value& right);

// left < right; an error where the kinds have no order.
bool less(Runtime& runtime, const Value& left, const Value& right);
bool less_or_equal(Runtime& runtime, const Value& left, const Value& right);

// `item in container` of Python.
bool contains(Runtime& runtime, const Value& container, const Value& item);

// The value of a dict's key, null where there is none; an error for a key that cannot be hashed.
const Value* find_key(Runtime& runtime, const Mapping& dict, const Value& key);
void require_hashable(Runtime& runtime, const Value& key);

// HTML's five special characters replaced.
std::string escape_html(std::string_view bytes);

// Sorts as Python's sorted() does by keys, which are given beside the items.
Values sort_by(Runtime& runtime, Values items, Values keys, bool reverse);

}  // namespace megatron::chat
