#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// What Megatron-LM's SentencePiece tokenizer puts around the library's.
struct SpWrapperOptions {
  bool legacy = false;  // special tokens are found in the text, also new ones
  std::vector<std::string>
      special_tokens;                    // with `legacy` alone; those that the model lacks get ids behind it
  bool ignore_extra_whitespaces = true;  // else spaces that the model would drop cut the text
};

// SentencePiece with the options of Megatron-LM's --tokenizer-sentencepiece-legacy and
// --no-tokenizer-sentencepiece-ignore-extra-whitespaces: the same ids and text.
class SpWrapper : public TokenizerBackend {
 public:
  // An Error says which special token cannot be one.
  SpWrapper(std::shared_ptr<const TokenizerBackend> model, const SpWrapperOptions& options);

  void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
              std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override {
    return model_->make_memory(bytes);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> id_of(std::string_view piece) const override;
  std::string piece_of(TokenId id) const override;
  SpecialIds special_ids() const override { return specials_; }
  bool is_special(TokenId id) const override {
    return find_special(id) != nullptr || (id < model_size_ && model_->is_special(id));
  }

 private:
  // A special token, or text that the model cuts into pieces by itself.
  struct Part {
    const std::pair<std::string, TokenId>* special;
    std::string text;
    std::vector<uint32_t> places;  // in the given text, of each character and of the end
    bool ends_with_mark = false;   // whose last token is dropped
    bool last = false;             // a separator behind a special token stays
  };
  const std::pair<std::string, TokenId>* find_special(TokenId id) const;
  std::vector<Part> parts_of(std::string_view text) const;

  std::shared_ptr<const TokenizerBackend> model_;
  int64_t model_size_, vocab_size_;
  bool legacy_, marks_spaces_ = false;
  std::vector<std::pair<std::string, TokenId>> tokens_;  // special ones, as they were given
  TokenId separator_;                                    // the piece of a space
  SpecialIds specials_;
};

}  // namespace megatron::tokenizers
