#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/models/merges.h"

namespace megatron::tokenizers {

// Byte-level BPE of words of a few bytes. Several are merged at a time, a step of each in turn, so that the
// pairs of all of them are on their way from memory together.
class ShortMerges {
 public:
  static constexpr size_t kMost = 32;  // bytes of a word
  static constexpr size_t kAtOnce = 8;

  // A word on its way. Symbols that are left are bits, so that neighbours are found without lists.
  class Word {
   public:
    void append_to(std::vector<TokenId>& ids) const;

   private:
    friend class ShortMerges;
    alignas(32) int32_t keys_[kMost];  // of a symbol's pair with the next: rank and place
    TokenId symbols_[kMost], merged_[kMost];
    uint32_t left_;
    int padded_;                   // keys, a multiple of the lanes of least_key()
    int at_, before_;              // symbols whose pair with the next is new
    uint64_t pair_, pair_before_;  // what MergeTable::prepare() says of these
  };

  ShortMerges(const std::array<TokenId, 256>& byte_ids, std::shared_ptr<const MergeTable> merges);

  // Makes a word of 1 to kMost bytes ready.
  void begin(std::string_view text, Word& word) const;
  // Merges words that are ready, at most kAtOnce, to their ends.
  void merge(std::span<Word> words) const;

 private:
  // Merges one pair; false where none is left.
  bool step(Word& word) const;
  void look_up(Word& word) const;

  std::array<TokenId, 256> byte_ids_;
  std::shared_ptr<const MergeTable> merges_;
  std::vector<MergeTable::Merge> first_;  // of two bytes, the left one above the right one
};

}  // namespace megatron::tokenizers
