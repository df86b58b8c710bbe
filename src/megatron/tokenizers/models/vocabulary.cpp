#include "megatron/tokenizers/models/vocabulary.h"

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
  size_t i = 0;
  uint64_t value = 0;
  for (; i + 8 <= piece.size(); i += 8) {
    std::memcpy(&value, piece.data() + i, 8);
    mix(value);
  }
  value = 0;
  for (size_t k = 0; i + k < piece.size(); ++k)
    value |= uint64_t{static_cast<uint8_t>(piece[i + k])} << 8 * k;
  mix(value);
  return hash;
}

void Vocabulary::grow(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.taken) slots_[place(text_of(slot.piece))] = slot;
}

void Vocabulary::reserve(size_t pieces) {
  if (const size_t slots = std::bit_ceil(2 * pieces + 1); slots > slots_.size()) grow(slots);
  pieces_.reserve(pieces);
}

void Vocabulary::add(std::string_view piece, TokenId id) {
  constexpr TokenId kMost = 1 << 22;  // a malformed file cannot ask for more memory than this many places
  require(id >= 0 && id < kMost, "vocabulary: piece '{}' has id {}, expected 0 to {}", piece, id, kMost - 1);
  if (2 * (count_ + 1) > slots_.size()) grow(std::max<size_t>(64, 2 * slots_.size()));
  Slot& slot = slots_[place(piece)];
  if (!slot.taken) {
    require(texts_.size() + piece.size() < kNone, "vocabulary: the pieces have more than 4 GiB");
    slot.piece = {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(piece.size())};
    texts_.insert(texts_.end(), piece.begin(), piece.end());
    slot.hash = static_cast<uint32_t>(hash_of(piece) >> 33);
    slot.taken = 1;
    ++count_;
  }
  slot.id = id;
  if (static_cast<size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<size_t>(id) + 1);
  pieces_[id] = slot.piece;
}

}  // namespace megatron::tokenizers
