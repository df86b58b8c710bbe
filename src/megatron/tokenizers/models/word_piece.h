#pragma once

#include "megatron/tokenizers/models/model.h"

namespace megatron::tokenizers {

// The longest piece that a word begins with, then the longest continuation of the rest, and so on.
class WordPieceModel : public Model {
 public:
  explicit WordPieceModel(const Json& settings);
  WordPieceModel(Vocabulary vocabulary, std::string_view unknown, std::string prefix, size_t max_characters);

  void tokenize(std::string_view word, std::vector<WordToken>& tokens) const override;

 private:
  TokenId unknown_;
  std::string prefix_;
  size_t max_characters_, max_piece_ = 0;
};

// A word is a piece or unknown.
class WordLevelModel : public Model {
 public:
  explicit WordLevelModel(const Json& settings);
  void tokenize(std::string_view word, std::vector<WordToken>& tokens) const override;

 private:
  std::optional<TokenId> unknown_;
};

}  // namespace megatron::tokenizers
