#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// What a file of Megatron-LM's --tokenizer-metadata says: {"library", "class_name", "class_path",
// "chat_template"}.
struct TokenizerMetadata {
  std::string library;                       // sentencepiece, huggingface, …
  std::optional<std::string> chat_template;  // before any other
};

// A ConfigError says what is wrong with the file, or that it names a Python class that we do not have.
TokenizerMetadata read_tokenizer_metadata(const std::string& path);

// The library of a type of make_tokenizer(); "" where it is not known.
std::string_view library_of(std::string_view tokenizer_type);

}  // namespace megatron
