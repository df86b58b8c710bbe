#pragma once

#include <memory>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// A post-processor as data: what is put around the tokens of a text, and how often and under which rules
// their places leave white space out.
class PostProcessor {
 public:
  PostProcessor() = default;
  // From the "post_processor" of a tokenizer.json. An Error names what is not known.
  explicit PostProcessor(const Json& settings);

  struct Added {
    TokenId id;
    std::string piece;
  };
  const std::vector<Added>& before() const { return before_; }
  const std::vector<Added>& behind() const { return behind_; }
  // The processors' own count of special tokens. Truncation leaves room for as many.
  size_t added_tokens() const { return added_tokens_; }

  // Applies all of it; without special tokens only to places.
  void apply(Encoding& encoding, bool add_special_tokens) const;

 private:
  struct Trim {
    bool prefix_space;
    bool behind_others;  // special tokens stand before the text in its list
  };
  class Lists;  // of tokens, as one processor hands them to the next
  void add(const Json& settings, Lists& lists);

  std::vector<Added> before_, behind_;
  std::vector<Trim> trims_;
  size_t added_tokens_ = 0;
};

}  // namespace megatron::tokenizers
