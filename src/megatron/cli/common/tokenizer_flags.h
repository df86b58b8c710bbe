#pragma once

#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/tokenizers/make_tokenizer.h"

namespace megatron {

// The tokenizer that a command line names.
struct TokenizerArguments {
  std::string type, model;
  TokenizerOptions options;

  // Opens it; a UsageError of `command` where no type was given.
  Tokenizer open(std::string_view command) const;
  // How the names of index caches describe it; {} where no type was given.
  Json description() const;
};

// The flags that fill it, by Megatron's names.
std::vector<Flag> tokenizer_flags(TokenizerArguments& arguments);

}  // namespace megatron
