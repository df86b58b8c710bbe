#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/models/merges.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/word_key.h"
#include "megatron/tokenizers/zeroed_array.h"

namespace megatron::tokenizers {

// What a thread has encoded before: words, or parts of them, with their ids. Bounded: when it is full, it
// forgets all.
class WordMemory : public EncodeMemory {
 public:
  explicit WordMemory(size_t bytes);

  // Brings the place of a word near, to be looked at soon.
  void prefetch(const WordKey&, uint64_t hash) const {
    __builtin_prefetch(&short_.slots[hash & short_.mask]);
  }
  void prefetch(const LongWordKey&, uint64_t hash) const {
    __builtin_prefetch(&medium_.slots[hash & medium_.mask]);
  }

  // Writes the ids of a word with this hash where it is known, and returns their number; else 0. Words have
  // at most as many ids as bytes here, and there must be room for kRoom of them, since they are written by
  // fours.
  static constexpr size_t kRoom = LongWordKey::kMost + 1;
  size_t find_few(const WordKey& key, uint64_t hash, TokenId* ids) const {
    return copy(short_.find(key, hash), ids);
  }
  size_t find_few(const LongWordKey& key, uint64_t hash, TokenId* ids) const {
    return copy(medium_.find(key, hash), ids);
  }
  bool has(const WordKey& key, uint64_t hash) const { return short_.find(key, hash) != nullptr; }
  bool has(const LongWordKey& key, uint64_t hash) const { return medium_.find(key, hash) != nullptr; }

  // Appends the ids of a word; false where it is not known.
  bool find(const WordKey& key, uint64_t hash, std::vector<TokenId>& ids) const {
    return append(short_.find(key, hash), ids);
  }
  bool find(const LongWordKey& key, uint64_t hash, std::vector<TokenId>& ids) const {
    return append(medium_.find(key, hash), ids);
  }
  void keep(const WordKey& key, uint64_t hash, std::span<const TokenId> ids) {
    keep_in(short_, key, hash, ids);
  }
  void keep(const LongWordKey& key, uint64_t hash, std::span<const TokenId> ids) {
    keep_in(medium_, key, hash, ids);
  }

  // The same for words of more bytes than a key holds.
  bool find_text(std::string_view word, uint64_t hash, std::vector<TokenId>& ids) const;
  void keep_text(std::string_view word, uint64_t hash, std::span<const TokenId> ids);
  static uint64_t hash_of(std::string_view word, bool part);
  static constexpr size_t kLongest = 256;  // bytes of a word; longer ones hardly come again

  // Appends the ids of a word, which `make(ids)` appends where the word is new. `readable` bytes may be read
  // from its begin on; a `part` is told apart from a word of the same bytes.
  template <class Make>
  void remember(std::string_view word, size_t readable, bool part, std::vector<TokenId>& ids, Make make) {
    if (word.size() <= WordKey::kMost) {
      remember_key(WordKey::of(word.data(), word.size(), readable, part), ids, make);
    } else if (word.size() <= LongWordKey::kMost) {
      remember_key(LongWordKey::of(word.data(), word.size(), readable, part), ids, make);
    } else if (word.size() <= kLongest) {
      const uint64_t hash = hash_of(word, part);
      if (find_text(word, hash, ids)) return;
      const size_t before = ids.size();
      make(ids);
      keep_text(word, hash, std::span(ids).subspan(before));
    } else {
      make(ids);
    }
  }
  template <class Key, class Make>
  void remember_key(const Key& key, std::vector<TokenId>& ids, Make make) {
    const uint64_t hash = key.hash();
    if (find(key, hash, ids)) return;
    const size_t before = ids.size();
    make(ids);
    keep(key, hash, std::span(ids).subspan(before));
  }

  std::vector<Symbol> symbols;  // of the word that is being merged
  MergeScratch scratch;
  // Gives back what a very long word has taken of these.
  void release_scratch();

  // Memory that it holds now. It stays below 4/3 of what it was made with, and some 100 kB, whatever it is
  // given.
  size_t bytes() const;

 private:
  // A slot is free where its key is empty; ids are here, or at ids[0] in more_ids_ where they are too many.
  struct ShortSlot {
    WordKey key;
    TokenId ids[3];
    uint32_t count;
  };
  struct MediumSlot {
    LongWordKey key;
    TokenId ids[7];
    uint32_t count;
  };
  struct TextSlot {
    uint64_t hash;
    uint32_t text, length, ids, count;  // length is 0 where the slot is free
  };
  template <class Slot>
  struct Table {
    ZeroedArray<Slot> slots;
    size_t mask = 0, count = 0, most = 0;  // slots at most

    template <class Key>
    const Slot* find(const Key& key, uint64_t hash) const {
      for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const Slot& slot = slots[i];
        if (slot.key == key) [[likely]]
          return &slot;
        if (slot.key.empty()) return nullptr;
      }
    }
  };

  template <class Slot>
  size_t copy(const Slot* slot, TokenId* ids) const {
    if (!slot) return 0;
    if (slot->count <= std::size(slot->ids)) [[likely]] {
      std::memcpy(ids, slot->ids, sizeof(slot->ids) + sizeof(slot->count));
      return slot->count;
    }
    const TokenId* known = &more_ids_[static_cast<uint32_t>(slot->ids[0])];
    for (uint32_t i = 0; i < slot->count; i += 4) std::memcpy(ids + i, known + i, 4 * sizeof(TokenId));
    return slot->count;
  }
  template <class Slot>
  bool append(const Slot* slot, std::vector<TokenId>& ids) const {
    if (!slot) return false;
    const TokenId* known =
        slot->count <= std::size(slot->ids) ? slot->ids : &more_ids_[static_cast<uint32_t>(slot->ids[0])];
    ids.insert(ids.end(), known, known + slot->count);
    return true;
  }
  template <class Slot, class Key>
  void keep_in(Table<Slot>& table, const Key& key, uint64_t hash, std::span<const TokenId> ids);
  template <class Slot, class Hash>
  void make_room(Table<Slot>& table, Hash hash);
  template <class Slot>
  static void reset(Table<Slot>& table, size_t slots);
  void forget();
  // Appends to more_ids_, a multiple of four.
  void keep_ids(std::span<const TokenId> ids);

  Table<ShortSlot> short_;
  Table<MediumSlot> medium_;
  Table<TextSlot> text_;
  std::string texts_;
  std::vector<TokenId> more_ids_;
  size_t most_text_, most_ids_;
};

}  // namespace megatron::tokenizers
