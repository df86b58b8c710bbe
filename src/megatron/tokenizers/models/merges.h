#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "megatron/tokenizers/models/vocabulary.h"

namespace megatron::tokenizers {

// The merges of a BPE model: a pair of tokens becomes one token, the lowest rank first.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    TokenId id = 0;
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  // The first rank of a pair counts, or the last with `replace`.
  void add(TokenId left, TokenId right, uint32_t rank, TokenId id, bool replace = true);
  size_t size() const { return size_; }
  uint32_t max_rank() const { return max_rank_; }

  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right), hash = key * 0x9E3779B97F4A7C15u;
    // Most pairs do not merge; the filter is small enough to tell so from a near cache.
    const uint64_t bit = hash >> (64 - kFilterBits);
    if (!(filter_[bit >> 6] >> (bit & 63) & 1)) return {};
    for (size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {};
    }
  }

 private:
  static constexpr int kFilterBits = 21;
  static constexpr uint64_t kFree = std::numeric_limits<uint64_t>::max();
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  void grow();

  std::vector<Slot> slots_;
  std::vector<uint64_t> filter_ = std::vector<uint64_t>(size_t{1} << (kFilterBits - 6));
  size_t size_ = 0, mask_ = 0;
  int shift_ = 0;
  uint32_t max_rank_ = 0;
};

// A token and the bytes of the word that it covers.
struct Symbol {
  TokenId id;
  uint32_t length;
};

// Memory that one merge after the other uses again.
struct MergeScratch {
  struct Node {
    TokenId id;
    uint32_t length, previous, next;
    uint32_t rank;  // of the pair with the next node
    TokenId merged;
  };
  static constexpr size_t kFew = 128;
  int32_t keys[kFew];  // of each symbol's pair with the next: rank and place
  TokenId ids[kFew], merged[kFew];
  uint32_t lengths[kFew];
  uint8_t next[kFew], previous[kFew];
  std::vector<Node> nodes;
  std::vector<uint64_t> heap;  // rank and place
};

// Merges neighbours, the lowest rank first and of those the leftmost, until none is left.
void merge_symbols(const MergeTable& merges, std::vector<Symbol>& symbols, MergeScratch& scratch);

}  // namespace megatron::tokenizers
