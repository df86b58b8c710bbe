#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megatron/base/json.h"
#include "megatron/tokenizers/added_tokens.h"
#include "megatron/tokenizers/byte_bpe.h"
#include "megatron/tokenizers/decoders/decoder.h"
#include "megatron/tokenizers/length_settings.h"
#include "megatron/tokenizers/models/model.h"
#include "megatron/tokenizers/normalizers/normalizer.h"
#include "megatron/tokenizers/post_processors/post_processor.h"
#include "megatron/tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/tokenizer_json.h"

namespace megatron::tokenizers {

class BertMemory;

// A tokenizer as a tokenizer.json describes it: added tokens, normalizer, pre-tokenizer, model,
// post-processor, decoder.
class HfTokenizer : public TokenizerBackend {
 public:
  HfTokenizer(TokenizerJson file, SpecialIds specials);

  void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
              std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override;
  int64_t vocab_size() const override;
  std::optional<TokenId> id_of(std::string_view piece) const override;
  std::string piece_of(TokenId id) const override;
  SpecialIds special_ids() const override { return specials_; }
  bool is_special(TokenId id) const override;

 private:
  // `settings` are the file's, whose model is made first.
  HfTokenizer(std::unique_ptr<const Model> model, const Json& settings, SpecialIds specials);
  void encode_text(std::string_view text, EncodeMemory* memory, std::vector<TokenId>& ids) const;
  bool encode_bert_chunk(std::string_view chunk, BertMemory& memory, std::vector<TokenId>& ids) const;
  void encode_chunks(std::string_view text, EncodeMemory* memory, std::vector<TokenId>& ids) const;
  // Calls emit(id, range of the original, its text where that is its piece, else "") for every token.
  template <class Emit>
  void run(std::string_view text, bool tracked, Emit emit) const;
  AlignedText normalized(std::string_view written, uint32_t origin, bool tracked) const;
  template <class Emit>
  void run_section(AlignedText text, Emit emit) const;

  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const Model> model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  std::unique_ptr<const Decoder> decoder_;
  LengthSettings lengths_;
  SpecialIds specials_;
  bool asks_for_places_ = false;  // ids depend on where the normalized text begins
  bool by_chunks_ = false;        // what stands between spaces is encoded apart from the rest
  bool is_bert_ = false;          // and words are what Bert makes of each character
  bool orders_marks_ = false;     // of Bert: accents are stripped
  std::unique_ptr<const ByteBpe>
      byte_bpe_;  // where the model is a byte-level one that the fast path can serve
};

// The special ids of a folder's configuration (tokenizer_config.json, special_tokens_map.json, config.json),
// or else by the names that published tokenizers use.
SpecialIds find_special_ids(const std::string& folder, const TokenizerJson& tokenizer);

}  // namespace megatron::tokenizers
