#pragma once

#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/tokenizers/make_tokenizer.h"

namespace megatron {

// The tokenizer that a command line names.
struct TokenizerArguments {
  std::string type, model;
  TokenizerOptions options{.whole_texts = true};  // as Megatron-LM has them from transformers

  // Opens it; a UsageError of `command` where no type was given.
  Tokenizer open(std::string_view command) const;
  // Whether Megatron-LM puts special tokens around texts that it encodes.
  bool adds_special_tokens() const { return megatron::adds_special_tokens(type, model, options); }
  // How the names of index caches describe it; {} where no type was given.
  Json description() const;
};

// The flags that fill it, by Megatron's names.
std::vector<Flag> tokenizer_flags(TokenizerArguments& arguments);

}  // namespace megatron
