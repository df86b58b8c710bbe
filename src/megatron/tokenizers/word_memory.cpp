#include "megatron/tokenizers/word_memory.h"

#include <algorithm>
#include <bit>

namespace megatron::tokenizers {
namespace {

constexpr size_t kFirstSlots = 4096;
constexpr size_t kMostSymbols = 1024;  // of a word, kept from one to the next

size_t slots_within(size_t bytes, size_t slot) {
  return std::max(kFirstSlots / 4, std::bit_floor(bytes / slot));
}

}  // namespace

// A third of the memory each is for short and for longer words; the rest is shared by the longest, their text
// and the ids of words that have many.
WordMemory::WordMemory(size_t bytes)
    : most_text_(std::max<size_t>(1 << 16, bytes / 12)),
      most_ids_(std::max<size_t>(1 << 14, bytes / 12 / sizeof(TokenId))) {
  short_.most = slots_within(bytes / 3, sizeof(ShortSlot));
  medium_.most = slots_within(bytes / 3, sizeof(MediumSlot));
  text_.most = slots_within(bytes / 6, sizeof(TextSlot));
  reset(short_, std::min(kFirstSlots, short_.most));
  reset(medium_, std::min(kFirstSlots / 4, medium_.most));
  reset(text_, std::min(kFirstSlots / 4, text_.most));
}

template <class Slot>
void WordMemory::reset(Table<Slot>& table, size_t slots) {
  table.slots = ZeroedArray<Slot>(slots);
  table.mask = slots - 1;
  table.count = 0;
}

void WordMemory::release_scratch() {
  if (symbols.capacity() <= kMostSymbols) return;
  symbols = std::vector<Symbol>();
  scratch.nodes = std::vector<MergeScratch::Node>();
  scratch.heap = std::vector<uint64_t>();
}

size_t WordMemory::bytes() const {
  const auto of = [](const auto& vector) { return vector.capacity() * sizeof(vector[0]); };
  return short_.slots.bytes() + medium_.slots.bytes() + text_.slots.bytes() + of(texts_) + of(more_ids_) +
         of(symbols) + of(scratch.nodes) + of(scratch.heap) + sizeof(*this);
}

void WordMemory::forget() {
  reset(short_, short_.slots.size());
  reset(medium_, medium_.slots.size());
  reset(text_, text_.slots.size());
  texts_.clear();
  more_ids_.clear();
}

// Makes sure that one more word fits: at most three quarters of the slots are taken. Common words come first
// and lie where they are looked for. The table grows by four, since new memory costs as much as many words.
// `hash` gives a slot's.
template <class Slot, class Hash>
void WordMemory::make_room(Table<Slot>& table, Hash hash) {
  const size_t size = table.slots.size();
  if (4 * (table.count + 1) <= 3 * size) return;
  if (size >= table.most) return forget();
  ZeroedArray<Slot> old = std::move(table.slots);
  const size_t count = table.count;
  reset(table, std::min(4 * size, table.most));
  table.count = count;
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    size_t i = hash(slot) & table.mask;
    while (table.slots[i].count != 0) i = (i + 1) & table.mask;
    table.slots[i] = slot;
  }
}

void WordMemory::keep_ids(std::span<const TokenId> ids) {
  more_ids_.insert(more_ids_.end(), ids.begin(), ids.end());
  more_ids_.resize((more_ids_.size() + 3) / 4 * 4);
}

template <class Slot, class Key>
void WordMemory::keep_in(Table<Slot>& table, const Key& key, uint64_t hash, std::span<const TokenId> ids) {
  if (ids.empty()) return;
  if (more_ids_.size() + ids.size() + 3 > most_ids_) forget();
  make_room(table, [](const Slot& slot) { return slot.key.hash(); });
  Slot slot{key, {}, static_cast<uint32_t>(ids.size())};
  if (ids.size() <= std::size(slot.ids)) {
    std::copy(ids.begin(), ids.end(), slot.ids);
  } else {
    slot.ids[0] = static_cast<TokenId>(more_ids_.size());
    keep_ids(ids);
  }
  size_t i = hash & table.mask;
  while (table.slots[i].count != 0) i = (i + 1) & table.mask;
  table.slots[i] = slot;
  ++table.count;
}

template void WordMemory::keep_in(Table<ShortSlot>&, const WordKey&, uint64_t, std::span<const TokenId>);
template void WordMemory::keep_in(Table<MediumSlot>&, const LongWordKey&, uint64_t, std::span<const TokenId>);

uint64_t WordMemory::hash_of(std::string_view word, bool part) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ (word.size() * 2 + part);
  const auto mix = [&](uint64_t value) {
    const auto product = static_cast<unsigned __int128>(hash ^ value) * 0xD6E8FEB86659FD93u;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  size_t i = 0;
  for (; i + 8 <= word.size(); i += 8) {
    uint64_t value;
    std::memcpy(&value, word.data() + i, 8);
    mix(value);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, word.data() + i, word.size() - i);
  mix(rest);
  return hash;
}

bool WordMemory::find_text(std::string_view word, uint64_t hash, std::vector<TokenId>& ids) const {
  for (size_t i = hash & text_.mask;; i = (i + 1) & text_.mask) {
    const TextSlot& slot = text_.slots[i];
    if (slot.count == 0) return false;
    if (slot.hash == hash && slot.length == word.size() &&
        std::memcmp(texts_.data() + slot.text, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), more_ids_.begin() + slot.ids, more_ids_.begin() + slot.ids + slot.count);
      return true;
    }
  }
}

void WordMemory::keep_text(std::string_view word, uint64_t hash, std::span<const TokenId> ids) {
  if (ids.empty()) return;
  if (texts_.size() + word.size() > most_text_ || more_ids_.size() + ids.size() + 3 > most_ids_) forget();
  make_room(text_, [](const TextSlot& slot) { return slot.hash; });
  size_t i = hash & text_.mask;
  while (text_.slots[i].count != 0) i = (i + 1) & text_.mask;
  text_.slots[i] = {hash, static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(word.size()),
                    static_cast<uint32_t>(more_ids_.size()), static_cast<uint32_t>(ids.size())};
  texts_ += word;
  keep_ids(ids);
  ++text_.count;
}

}  // namespace megatron::tokenizers
