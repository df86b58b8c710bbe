#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/tokenizers/added_tokens.h"
#include "megatron/tokenizers/byte_bpe.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// The split pattern of a name: v1 and v2 are Megatron's, cl100k and o200k OpenAI's. A ConfigError names
// others.
std::string_view tiktoken_pattern(std::string_view name);

// A list of byte strings whose order is both their ids and the ranks of merges.
class TiktokenTokenizer : public TokenizerBackend {
 public:
  // Ids are ranks plus `first_id`.
  TiktokenTokenizer(std::vector<std::pair<std::string, uint32_t>> ranks, std::string_view pattern,
                    TokenId first_id, std::vector<AddedToken> special_tokens, SpecialIds specials);

  void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
              std::vector<TokenId>& ids) const override;
  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override { return bpe_.make_memory(bytes); }
  int64_t vocab_size() const override;
  std::optional<TokenId> id_of(std::string_view piece) const override;
  std::string piece_of(TokenId id) const override;
  SpecialIds special_ids() const override { return specials_; }
  bool is_special(TokenId id) const override { return added_.by_id(id) != nullptr; }

 private:
  Vocabulary bytes_;
  ByteBpe bpe_;
  AddedTokens added_;
  SpecialIds specials_;
};

// Base64 and rank a line.
std::vector<std::pair<std::string, uint32_t>> read_tiktoken_file(std::string_view text,
                                                                 std::string_view origin);
// Upstream's form: [{"rank": …, "token_bytes": base64, "token_str": …}, …], at most `count` of them.
std::vector<std::pair<std::string, uint32_t>> read_tiktoken_json(const Json& list, size_t count,
                                                                 std::string_view origin);

}  // namespace megatron::tokenizers
