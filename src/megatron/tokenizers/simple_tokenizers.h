#pragma once

#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// A token a byte. Ids above 255 stand for no text. Unlike upstream's, decoding keeps white space at the end.
class ByteLevelTokenizer : public TokenizerBackend {
 public:
  explicit ByteLevelTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}
  void encode(std::string_view text, bool, EncodeMemory*, std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool) const override;
  std::string decode(std::span<const TokenId> ids, bool) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> id_of(std::string_view piece) const override;
  std::string piece_of(TokenId id) const override;
  SpecialIds special_ids() const override { return {.eos = 0, .eod = 0, .pad = 1}; }
  bool is_special(TokenId id) const override { return id >= 256; }

 private:
  int64_t vocab_size_;
};

// Text is the ids themselves, with white space between them.
class NullTokenizer : public TokenizerBackend {
 public:
  NullTokenizer(int64_t vocab_size, TokenId eod, TokenId pad)
      : vocab_size_(vocab_size), eod_(eod), pad_(pad) {}
  void encode(std::string_view text, bool, EncodeMemory*, std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool) const override;
  std::string decode(std::span<const TokenId> ids, bool) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> id_of(std::string_view piece) const override;
  std::string piece_of(TokenId id) const override { return std::to_string(id); }
  SpecialIds special_ids() const override { return {.eos = eod_, .eod = eod_, .pad = pad_}; }
  bool is_special(TokenId id) const override { return id == eod_; }

 private:
  int64_t vocab_size_;
  TokenId eod_, pad_;
};

}  // namespace megatron::tokenizers
