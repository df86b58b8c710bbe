#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/aligned_text.h"
#include "megatron/tokenizers/word_scanner.h"

namespace megatron::tokenizers {

// A text between added tokens and the words into which it is cut so far; they ascend, are apart and not
// empty.
struct Section {
  AlignedText text;
  std::vector<ByteRange> words;
};

// Cuts words into smaller ones, or changes them.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Section& section) const = 0;
};

// From the "pre_tokenizer" of a tokenizer.json; null for null. An Error names what is not known.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& settings);

// Where the settings amount to a published split pattern and then bytes, its rules and whether a space is put
// in front: what the fast path takes.
struct ByteLevelRules {
  WordRules words;
  bool prefix_space = false;
};
std::optional<ByteLevelRules> byte_level_rules(const Json& settings);

}  // namespace megatron::tokenizers
