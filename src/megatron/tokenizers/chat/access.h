#pragma once

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// `value.name` of a template: an attribute or method, else an item, else undefined.
Value get_attribute(Runtime& runtime, const Value& value, std::string_view name);

// `value[key]` of a template: an item, else an attribute, else undefined.
Value get_item(Runtime& runtime, const Value& value, const Value& key);

// `value[start:stop:step]`; each may be None.
Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step);

// The attribute alone, as the filter `attr` wants it; false where there is none.
bool find_attribute(Runtime& runtime, const Value& value, std::string_view name, Value& result);

// Methods of texts and containers, bound to `self`; false where there is none of that name.
bool text_method(const Value& self, std::string_view name, Value& result);
bool container_method(Runtime& runtime, const Value& self, std::string_view name, Value& result);

}  // namespace megatron::chat
