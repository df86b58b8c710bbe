#pragma once

#include <string>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// A tokenizer that knows further special tokens, which are found in a text wherever they are written. Those
// that it has not yet get the ids behind its vocabulary, in their order.
Tokenizer with_extra_tokens(Tokenizer tokenizer, const std::vector<std::string>& names);

// A tokenizer in which ids of its vocabulary have a further name, by which they are found in a text and
// written: "NAME,ID" each. An Error where an id is not in the vocabulary.
Tokenizer with_assigned_tokens(Tokenizer tokenizer, const std::vector<std::string>& names_and_ids);

}  // namespace megatron
