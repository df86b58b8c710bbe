#include "megatron/tokenizers/word_memory.h"

#include <algorithm>
#include <bit>

namespace megatron::tokenizers {
namespace {

constexpr size_t kFirstSlots = 4096;

}  // namespace

// Half of the memory is for short words; the rest is shared by long ones, their text and ids.
WordMemory::WordMemory(size_t bytes)
    : short_(kFirstSlots),
      long_(kFirstSlots / 4),
      short_mask_(short_.size() - 1),
      long_mask_(long_.size() - 1),
      most_short_(std::max(kFirstSlots, std::bit_floor(bytes / 2 / sizeof(ShortSlot)))),
      most_long_(std::max(kFirstSlots / 4, std::bit_floor(bytes / 8 / sizeof(LongSlot)))),
      most_text_(std::max<size_t>(1 << 16, bytes / 8)),
      most_ids_(std::max<size_t>(1 << 14, bytes / 8 / sizeof(TokenId))) {}

void WordMemory::forget() {
  std::fill(short_.begin(), short_.end(), ShortSlot{});
  std::fill(long_.begin(), long_.end(), LongSlot{});
  long_text_.clear();
  long_ids_.clear();
  short_count_ = long_count_ = 0;
}

void WordMemory::place(const ShortSlot& slot) {
  size_t i = WordKey{slot.low, slot.high}.hash() & short_mask_;
  while (short_[i].high != 0) i = (i + 1) & short_mask_;
  short_[i] = slot;
}

void WordMemory::keep_short(WordKey key, std::span<const TokenId> ids) {
  if (long_ids_.size() + ids.size() > most_ids_) forget();
  if (2 * (short_count_ + 1) > short_.size()) {
    if (short_.size() >= most_short_) {
      forget();
    } else {
      std::vector<ShortSlot> old(short_.size() * 2);
      old.swap(short_);
      short_mask_ = short_.size() - 1;
      for (const ShortSlot& slot : old)
        if (slot.high != 0) place(slot);
    }
  }
  ShortSlot slot{key.low, key.high, {}, static_cast<uint32_t>(ids.size())};
  if (ids.size() <= 3) {
    std::copy(ids.begin(), ids.end(), slot.ids);
  } else {
    slot.ids[0] = static_cast<TokenId>(long_ids_.size());
    long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
  }
  place(slot);
  ++short_count_;
}

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

bool WordMemory::find_long(std::string_view word, uint64_t hash, std::vector<TokenId>& ids) const {
  for (size_t i = hash & long_mask_;; i = (i + 1) & long_mask_) {
    const LongSlot& slot = long_[i];
    if (slot.length == 0) return false;
    if (slot.hash == hash && slot.length == word.size() &&
        std::memcmp(long_text_.data() + slot.text, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), long_ids_.begin() + slot.ids, long_ids_.begin() + slot.ids + slot.count);
      return true;
    }
  }
}

void WordMemory::keep_long(std::string_view word, uint64_t hash, std::span<const TokenId> ids) {
  if (long_text_.size() + word.size() > most_text_ || long_ids_.size() + ids.size() > most_ids_) forget();
  if (2 * (long_count_ + 1) > long_.size()) {
    if (long_.size() >= most_long_) {
      forget();
    } else {
      std::vector<LongSlot> old(long_.size() * 2);
      old.swap(long_);
      long_mask_ = long_.size() - 1;
      for (const LongSlot& slot : old) {
        if (slot.length == 0) continue;
        size_t i = slot.hash & long_mask_;
        while (long_[i].length != 0) i = (i + 1) & long_mask_;
        long_[i] = slot;
      }
    }
  }
  size_t i = hash & long_mask_;
  while (long_[i].length != 0) i = (i + 1) & long_mask_;
  long_[i] = {hash, static_cast<uint32_t>(long_text_.size()), static_cast<uint32_t>(word.size()),
              static_cast<uint32_t>(long_ids_.size()), static_cast<uint32_t>(ids.size())};
  long_text_ += word;
  long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
  ++long_count_;
}

}  // namespace megatron::tokenizers
