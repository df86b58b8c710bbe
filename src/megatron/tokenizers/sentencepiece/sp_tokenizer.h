#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>

#include "megatron/tokenizers/models/merges.h"
#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/sentencepiece/sp_normalizer.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// A piece of the normalized text.
struct SpToken {
  TokenId id;
  ByteRange range;
};

// Cuts normalized text into pieces.
class SpModel {
 public:
  virtual ~SpModel() = default;
  virtual void encode(std::string_view text, EncodeMemory* memory, std::vector<SpToken>& tokens) const = 0;
  virtual std::unique_ptr<EncodeMemory> make_memory(size_t) const { return nullptr; }
};

// BPE and unigram of a file; an Error names other algorithms.
std::unique_ptr<const SpModel> make_sp_model(const SentencePieceFile& file, const SpNormalizer& normalizer,
                                             const Vocabulary& pieces, TokenId unknown,
                                             std::string_view origin);

// SentencePiece without its library: the same ids, decoded text and places.
class SpTokenizer : public TokenizerBackend {
 public:
  SpTokenizer(SentencePieceFile file, std::string_view origin);

  void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
              std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override {
    return model_->make_memory(bytes);
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(file_.pieces.size()); }
  std::optional<TokenId> id_of(std::string_view piece) const override { return all_.find(piece); }
  std::string piece_of(TokenId id) const override { return std::string(all_.piece(id)); }
  SpecialIds special_ids() const override { return specials_; }
  bool is_special(TokenId id) const override;

 private:
  using Kind = SentencePieceFile::Kind;
  Kind kind_of(TokenId id) const { return file_.pieces[static_cast<size_t>(id)].kind; }
  // Calls emit(id, normalized range) with bytes for unknown pieces and unknown neighbours joined.
  template <class Emit>
  void run(std::string_view normalized, EncodeMemory* memory, Emit emit) const;

  SentencePieceFile file_;
  Vocabulary all_;       // every piece
  Vocabulary ordinary_;  // those that text is cut into
  SpecialIds specials_;
  std::array<TokenId, 256> byte_ids_;
  std::unordered_map<TokenId, char> bytes_;  // of byte pieces
  SpNormalizer normalizer_;
  std::unique_ptr<const SpModel> model_;
};

}  // namespace megatron::tokenizers
