#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/tokenizers/aligned_text.h"
#include "megatron/tokenizers/models/byte_trie.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/normalizers/normalizer.h"

namespace megatron::tokenizers {

// A token that is found in the text before anything else happens to it.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string shown;  // how it is decoded: its content, normalized where `normalized` says so
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

// The added tokens of a tokenizer: found by their text, leftmost and longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  // `settings` is the list of a tokenizer.json; a content that the model knows has the model's id.
  AddedTokens(const Json& settings, const Vocabulary& vocabulary, const Normalizer* normalizer);
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer);
  AddedTokens(AddedTokens&&) = default;
  AddedTokens& operator=(AddedTokens&&) = default;

  struct Part {
    ByteRange range;
    const AddedToken* token;  // null: ordinary text
  };
  // Cuts the original text at tokens that are found as they are written.
  std::vector<Part> split(std::string_view text) const { return find(text, plain_); }
  // Cuts normalized text at the others.
  std::vector<Part> split_normalized(std::string_view text) const { return find(text, normalized_); }
  bool any_normalized() const { return !normalized_.tokens.empty(); }

  const AddedToken* by_id(TokenId id) const;
  const AddedToken* by_content(std::string_view content) const;
  // One more than the highest id; 0 without tokens.
  TokenId end_id() const { return end_id_; }
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  struct Finder {
    ByteTrie trie;
    std::vector<uint32_t> tokens;  // places in tokens_
    bool first[256] = {};          // bytes with which some begin
    int only_first = -1;           // the byte, where all begin with the same one

    // The next place at which one may begin; the text's size where there is none.
    size_t next_begin(std::string_view text, size_t at) const;
  };
  void build(const Normalizer* normalizer);
  std::vector<Part> find(std::string_view text, const Finder& finder) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, uint32_t> by_id_;
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> by_content_;
  Finder plain_, normalized_;
  TokenId end_id_ = 0;
};

}  // namespace megatron::tokenizers
