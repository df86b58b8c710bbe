#pragma once

#include "megatron/tokenizers/models/byte_trie.h"
#include "megatron/tokenizers/models/model.h"

namespace megatron::tokenizers {

// The segmentation whose pieces have the highest sum of scores, as Hugging Face's Unigram finds it.
class UnigramModel : public Model {
 public:
  explicit UnigramModel(const Json& settings);
  void tokenize(std::string_view word, std::vector<WordToken>& tokens) const override;
  bool shows_text(TokenId id) const override { return id == unknown_; }

 private:
  ByteTrie trie_;
  std::vector<double> scores_;
  std::optional<TokenId> unknown_;
  bool byte_fallback_ = false;
  double unknown_score_ = 0;
};

}  // namespace megatron::tokenizers
