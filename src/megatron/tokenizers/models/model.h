#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/aligned_text.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/tokenizer_json.h"

namespace megatron::tokenizers {

// A token of a word: `range` counts the word's bytes.
struct WordToken {
  TokenId id;
  ByteRange range;
};

// Turns a word into tokens of a vocabulary.
class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of a word.
  virtual void tokenize(std::string_view word, std::vector<WordToken>& tokens) const = 0;

  // Whether the piece of a token is the text that it stands for, not the vocabulary's.
  virtual bool shows_text(TokenId) const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Vocabulary vocabulary_;
};

// From the "model" of a tokenizer.json, whose pieces are moved away. An Error names what is not known.
std::unique_ptr<const Model> make_model(TokenizerJson& file);

// {"piece": id, …}.
Vocabulary read_vocabulary(const Json& pieces);

}  // namespace megatron::tokenizers
