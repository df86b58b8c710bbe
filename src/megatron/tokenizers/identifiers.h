#pragma once

#include "megatron/base/json.h"
#include "megatron/tokenizers/make_tokenizer.h"

namespace megatron {

// How Megatron-LM's datasets describe make_tokenizer(type, path, options) in the names of their index caches:
// the class that it wraps tokenizers in, the path, and Python's str() of each option that it passes on.
// `chat_template` is the text of the template that was given, "" where none was.
Json tokenizer_identifiers(std::string_view type, const std::string& path, const TokenizerOptions& options,
                           std::string_view chat_template = "");

}  // namespace megatron
