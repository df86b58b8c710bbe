#pragma once

#include "megatron/tokenizers/chat/runtime.h"

namespace megatron::chat {

// `format % arguments` of Python: a tuple of arguments, a dict of named ones, or one value.
Value percent_format(Runtime& runtime, const Value& format, const Value& arguments);

}  // namespace megatron::chat
