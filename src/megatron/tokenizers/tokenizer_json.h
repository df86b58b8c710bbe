#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/models/merge_names.h"
#include "megatron/tokenizers/models/vocabulary.h"

namespace megatron::tokenizers {

// The pieces and merges of a BPE model as its text has them.
struct BpeText {
  Vocabulary vocabulary;
  std::vector<MergeNames> merges;     // views of the text, or of `unescaped`
  std::deque<std::string> unescaped;  // names that the text escapes
};

// A tokenizer.json. The pieces and merges of BPE are nearly all of its bytes: they are read without a Json
// value of each, which would take most of the time that loading takes.
struct TokenizerJson {
  TokenizerJson(Json whole) : settings(std::move(whole)) {}
  // The text has to outlive `bpe`. `origin` begins the message of the Error that malformed text gives.
  static TokenizerJson parse(std::string_view text, std::string_view origin);

  Json settings;
  std::optional<BpeText> bpe;  // where it is given, `settings` has neither vocab nor merges
};

}  // namespace megatron::tokenizers
