#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_pieces.h"
#include "megatron/tokenizers/cut_points.h"
#include "megatron/tokenizers/models/merges.h"
#include "megatron/tokenizers/short_merges.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/word_scanner.h"

namespace megatron::tokenizers {

class WordMemory;

// Byte-level BPE over words that a published split pattern cuts: the hot path of most tokenizers. It reads
// the text's own bytes, and remembers the ids of words that it has met.
class ByteBpe {
 public:
  // With `whole_words` a word that is a piece is that piece, whatever merges say. All 256 single bytes must
  // be among the pieces.
  ByteBpe(WordRules rules, bool prefix_space, const BytePieces& pieces,
          std::shared_ptr<const MergeTable> merges, bool whole_words);
  ~ByteBpe();

  // Appends the ids of a text of valid UTF-8; `memory` may be null, else it is one of ours.
  void encode(std::string_view text, EncodeMemory* memory, std::vector<TokenId>& ids) const;
  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const;

 private:
  class Pieces;
  class Run;
  // Rules are a type where they are known to the compiler.
  template <class Rules>
  void encode_words(Rules rules, std::string_view text, WordMemory& memory, std::vector<TokenId>& ids) const;
  // Appends the ids of a word, or of a part of one, that is not remembered.
  void encode_new(std::string_view word, bool part, WordMemory& memory, std::vector<TokenId>& ids) const;

  WordRules rules_;
  bool prefix_space_, whole_words_;
  std::array<TokenId, 256> byte_ids_;
  std::shared_ptr<const MergeTable> merges_;
  std::optional<ShortMerges> short_merges_;
  CutPoints cuts_;
  std::unique_ptr<const Pieces> pieces_;
};

}  // namespace megatron::tokenizers
