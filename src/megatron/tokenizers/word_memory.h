#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/models/merges.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::tokenizers {

// The bytes of a short word in two registers. The highest byte is the length, with a bit for parts of words.
struct WordKey {
  static constexpr size_t kMost = 15;
  uint64_t low = 0, high = 0;

  // `readable` bytes may be read from `text` on.
  static WordKey of(const char* text, size_t length, size_t readable, bool part) {
    WordKey key;
    if (readable >= 16) {
      std::memcpy(&key.low, text, 8);
      std::memcpy(&key.high, text + 8, 8);
      const uint64_t keep = length >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * length) - 1;
      const uint64_t keep_high = length <= 8 ? 0 : (uint64_t{1} << 8 * (length - 8)) - 1;
      key.low &= keep;
      key.high &= keep_high;
    } else {
      char bytes[16] = {};
      std::memcpy(bytes, text, length);
      std::memcpy(&key.low, bytes, 8);
      std::memcpy(&key.high, bytes + 8, 8);
    }
    key.high |= uint64_t(length | (part ? 16 : 0)) << 56;
    return key;
  }
  uint64_t hash() const {
    const auto product =
        static_cast<unsigned __int128>(low ^ 0x9E3779B97F4A7C15u) * (high ^ 0xD6E8FEB86659FD93u);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

// What a thread has encoded before: words, or parts of them, with their ids. Bounded: when it is full, it
// forgets all.
class WordMemory : public EncodeMemory {
 public:
  explicit WordMemory(size_t bytes);

  // Brings the place of a short word near, to be looked at soon.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&short_[hash & short_mask_]); }

  // Appends the ids of a short word with this hash; false where it is not known.
  bool find_short(WordKey key, uint64_t hash, std::vector<TokenId>& ids) const {
    for (size_t i = hash & short_mask_;; i = (i + 1) & short_mask_) {
      const ShortSlot& slot = short_[i];
      if (slot.low == key.low && slot.high == key.high) {
        if (slot.count == 1) {
          ids.push_back(slot.ids[0]);
          return true;
        }
        const TokenId* known = slot.count <= 3 ? slot.ids : &long_ids_[static_cast<size_t>(slot.ids[0])];
        const size_t before = ids.size();
        ids.resize(before + slot.count);
        for (uint32_t k = 0; k < slot.count; ++k) ids[before + k] = known[k];
        return true;
      }
      if (slot.high == 0) return false;
    }
  }
  void keep_short(WordKey key, std::span<const TokenId> ids);

  // The same for words of more bytes than a key holds.
  bool find_long(std::string_view word, uint64_t hash, std::vector<TokenId>& ids) const;
  void keep_long(std::string_view word, uint64_t hash, std::span<const TokenId> ids);
  static uint64_t hash_of(std::string_view word, bool part);

  // Appends the ids of a word, which `make(ids)` appends where the word is new. `readable` bytes may be read
  // from its begin on; a `part` is told apart from a word of the same bytes.
  template <class Make>
  void remember(std::string_view word, size_t readable, bool part, std::vector<TokenId>& ids, Make make) {
    constexpr size_t kMostRemembered = 256;  // longer words hardly come again
    const size_t before = ids.size();
    if (word.size() <= WordKey::kMost) {
      const WordKey key = WordKey::of(word.data(), word.size(), readable, part);
      if (find_short(key, key.hash(), ids)) return;
      make(ids);
      keep_short(key, std::span(ids).subspan(before));
    } else if (word.size() <= kMostRemembered) {
      const uint64_t hash = hash_of(word, part);
      if (find_long(word, hash, ids)) return;
      make(ids);
      keep_long(word, hash, std::span(ids).subspan(before));
    } else {
      make(ids);
    }
  }

  std::vector<Symbol> symbols;  // of the word that is being merged
  MergeScratch scratch;

 private:
  struct ShortSlot {
    uint64_t low = 0, high = 0;  // high is 0 where the slot is free
    TokenId ids[3] = {};         // or a place in long_ids_
    uint32_t count = 0;
  };
  struct LongSlot {
    uint64_t hash = 0;
    uint32_t text = 0, length = 0, ids = 0, count = 0;  // length is 0 where the slot is free
  };
  void forget();
  void place(const ShortSlot& slot);

  std::vector<ShortSlot> short_;
  std::vector<LongSlot> long_;
  std::string long_text_;
  std::vector<TokenId> long_ids_;
  size_t short_mask_ = 0, long_mask_ = 0, short_count_ = 0, long_count_ = 0;
  size_t most_short_, most_long_, most_text_, most_ids_;
};

}  // namespace megatron::tokenizers
