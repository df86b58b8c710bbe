#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "megatron/tokenizers/models/vocabulary.h"
#include "megatron/tokenizers/zeroed_array.h"

namespace megatron::tokenizers {

// The merges of a BPE model: a pair of tokens becomes one token, the lowest rank first. A pair and its rank
// are one number of 64 bits, so that many lie in a near cache.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    TokenId id = 0;
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  // The first rank of a pair counts, or the last with `replace`.
  void add(TokenId left, TokenId right, uint32_t rank, TokenId id, bool replace = true);
  // Makes room for so many merges.
  void reserve(size_t merges);
  size_t size() const { return size_; }
  uint32_t max_rank() const { return max_rank_; }

  // Tokens that never merge may have any id, also a negative one.
  Merge find(TokenId left, TokenId right) const {
    const uint64_t pair = pair_of(left, right);
    return pair == 0 ? Merge{} : look_up(pair);
  }
  // find() in two parts, so that several pairs come near together: 0 where the pair does not merge, else what
  // look_up() takes.
  uint64_t prepare(TokenId left, TokenId right) const {
    const uint64_t pair = pair_of(left, right);
    if (pair != 0) {
      const size_t place = (pair - 1) * kFactor >> shift_;
      __builtin_prefetch(&slots_[place]);
      __builtin_prefetch(&ids_[place]);
    }
    return pair;
  }
  Merge look_up(uint64_t pair) const {
    const uint64_t key = pair - 1;
    for (size_t i = key * kFactor >> shift_;; i = (i + 1) & mask_) {
      const uint64_t slot = slots_[i];
      if (slot >> kRankBits == key) return {rank_of(slot), ids_[i]};
      if (slot == 0) return {};
    }
  }

 private:
  static constexpr int kIdBits = 21, kRankBits = 22, kFilterBits = 21;
  static constexpr uint64_t kMaxRank = (uint64_t{1} << kRankBits) - 1, kFactor = 0x9E3779B97F4A7C15u;
  // kNone of a free slot, since slots hold one more.
  static uint32_t rank_of(uint64_t slot) { return static_cast<uint32_t>(slot & kMaxRank) - 1; }
  static uint64_t key_of(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << kIdBits | static_cast<uint32_t>(right);
  }
  // One more than the key of two tokens; 0 where they surely do not merge. Most do not, and the filter is
  // small enough to tell so from a near cache.
  uint64_t pair_of(TokenId left, TokenId right) const {
    if ((static_cast<uint32_t>(left) | static_cast<uint32_t>(right)) >> kIdBits) return 0;
    const uint64_t key = key_of(left, right), bit = key * kFactor >> (64 - kFilterBits);
    return filter_[bit >> 6] >> (bit & 63) & 1 ? key + 1 : 0;
  }
  void grow(size_t slots);

  ZeroedArray<uint64_t> slots_;  // the key above one more than the rank; 0 where it is free
  ZeroedArray<TokenId> ids_;     // what each slot's pair becomes
  ZeroedArray<uint64_t> filter_ = ZeroedArray<uint64_t>(size_t{1} << (kFilterBits - 6));
  size_t size_ = 0, mask_ = 0;
  int shift_ = 0;
  uint32_t max_rank_ = 0;
};

// The least of `count` keys, which are a multiple of the lanes. GCC at -O2 makes no vector of a loop whose
// length it does not know.
constexpr int kKeyLanes = 8;
inline int32_t least_key(const int32_t* keys, int count) {
  using Lanes
      [[gnu::vector_size(kKeyLanes * sizeof(int32_t)), gnu::aligned(alignof(int32_t)), gnu::may_alias]] =
          int32_t;
  const auto smaller = [](Lanes a, Lanes b) { return a < b ? a : b; };
  Lanes least = *reinterpret_cast<const Lanes*>(keys);
  for (int i = kKeyLanes; i < count; i += kKeyLanes) {
    least = smaller(least, *reinterpret_cast<const Lanes*>(keys + i));
  }
  least = smaller(least, __builtin_shufflevector(least, least, 4, 5, 6, 7, 0, 1, 2, 3));
  least = smaller(least, __builtin_shufflevector(least, least, 2, 3, 0, 1, 6, 7, 4, 5));
  least = smaller(least, __builtin_shufflevector(least, least, 1, 0, 3, 2, 5, 4, 7, 6));
  return least[0];
}

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
