#pragma once

#include <array>
#include <optional>
#include <span>

#include "megatron/tokenizers/models/merge_names.h"
#include "megatron/tokenizers/models/model.h"

namespace megatron::tokenizers {

// Byte-pair encoding over the characters of a word.
class BpeModel : public Model {
 public:
  struct Options {
    std::optional<TokenId> unknown;
    bool fuse_unknown = false;
    bool byte_fallback = false;  // a character without piece becomes <0x..> for each of its bytes
    bool ignore_merges = false;  // a word that is a piece is that piece
    std::string continuing_prefix, end_suffix;
  };
  explicit BpeModel(const Json& settings);
  // Pieces and merges that were read apart from the other settings.
  BpeModel(const Json& settings, Vocabulary vocabulary, std::span<const MergeNames> merges);
  BpeModel(Vocabulary vocabulary, MergeTable merges, Options options)
      : Model(std::move(vocabulary)),
        merges_(std::make_shared<const MergeTable>(std::move(merges))),
        options_(std::move(options)) {}

  void tokenize(std::string_view word, std::vector<WordToken>& tokens) const override;

  const std::shared_ptr<const MergeTable>& merges() const { return merges_; }
  const Options& options() const { return options_; }

 private:
  void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  bool byte_symbols(std::string_view text, std::vector<Symbol>& symbols) const;

  std::shared_ptr<const MergeTable> merges_;
  Options options_;
};

}  // namespace megatron::tokenizers
