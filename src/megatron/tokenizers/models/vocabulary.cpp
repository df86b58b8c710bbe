#include "megatron/tokenizers/models/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "megatron/base/error.h"

namespace megatron::tokenizers {

uint64_t Vocabulary::hash_of(std::string_view piece) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ piece.size();
  const auto mix = [&](uint64_t value) {
    const auto product = static_cast<unsigned __int128>(hash ^ value) * 0xD6E8FEB86659FD93u;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  const auto read = [&]<class Word>(Word, size_t at) {
    Word word;
    std::memcpy(&word, piece.data() + at, sizeof(word));
    return uint64_t{word};
  };
  const size_t size = piece.size();
  size_t i = 0;
  for (; i + 8 < size; i += 8) mix(read(uint64_t{}, i));
  if (size >= 8)  // the last bytes, some of them twice
    mix(read(uint64_t{}, size - 8));
  else if (size >= 4)
    mix(read(uint32_t{}, 0) | read(uint32_t{}, size - 4) << 32);
  else if (size > 0)
    mix(read(uint8_t{}, 0) | read(uint8_t{}, size / 2) << 8 | read(uint8_t{}, size - 1) << 16);
  return hash;
}

void Vocabulary::grow(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.taken) slots_[place(text_of(slot.piece))] = slot;
}

void Vocabulary::find(std::span<const std::string_view> pieces, TokenId* ids) const {
  constexpr size_t kAtOnce = 48;
  std::array<uint64_t, kAtOnce> hashes;
  if (slots_.empty()) return void(std::fill_n(ids, pieces.size(), -1));
  const size_t mask = slots_.size() - 1;
  for (size_t begin = 0; begin < pieces.size(); begin += kAtOnce) {
    const size_t count = std::min(kAtOnce, pieces.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(pieces[begin + i]);
      __builtin_prefetch(&slots_[hashes[i] & mask]);
    }
    for (size_t i = 0; i < count; ++i)
      if (const Slot& slot = slots_[hashes[i] & mask]; slot.taken)
        __builtin_prefetch(texts_.data() + slot.piece.begin);
    for (size_t i = 0; i < count; ++i) {
      const Slot& slot = slots_[place(pieces[begin + i], hashes[i])];
      ids[begin + i] = slot.taken ? slot.id : -1;
    }
  }
}

void Vocabulary::reserve(size_t pieces) {
  if (const size_t slots = std::bit_ceil(2 * pieces + 1); slots > slots_.size()) grow(slots);
  pieces_.reserve(pieces);
}

void Vocabulary::add(std::string_view piece, TokenId id) {
  constexpr TokenId kMost = 1 << 22;  // a malformed file cannot ask for more memory than this many places
  require(id >= 0 && id < kMost, "vocabulary: piece '{}' has id {}, expected 0 to {}", piece, id, kMost - 1);
  if (2 * (count_ + 1) > slots_.size()) grow(std::max<size_t>(64, 2 * slots_.size()));
  const uint64_t hash = hash_of(piece);
  Slot& slot = slots_[place(piece, hash)];
  one_to_one_ = one_to_one_ && !slot.taken && !has(id);
  if (!slot.taken) {
    require(texts_.size() + piece.size() < kNone, "vocabulary: the pieces have more than 4 GiB");
    slot.piece = {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(piece.size())};
    texts_.insert(texts_.end(), piece.begin(), piece.end());
    slot.hash = static_cast<uint32_t>(hash >> 33);
    slot.taken = 1;
    ++count_;
  }
  slot.id = id;
  if (static_cast<size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<size_t>(id) + 1);
  pieces_[id] = slot.piece;
}

}  // namespace megatron::tokenizers
