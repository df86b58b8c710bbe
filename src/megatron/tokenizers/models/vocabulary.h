#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatron {
using TokenId = int32_t;
}

namespace megatron::tokenizers {

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Pieces and their ids, both ways. Ids may have gaps. Texts lie end to end in one block, and are found by a
// table of their hashes.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // the texts stay where they are
  Vocabulary& operator=(Vocabulary&&) = default;

  // A second piece of the same id is found by its text alone, a second id of a piece replaces the first.
  void add(std::string_view piece, TokenId id);
  // Makes room for so many pieces.
  void reserve(size_t pieces);
  std::optional<TokenId> find(std::string_view piece) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[place(piece)];
    return slot.taken ? std::optional(slot.id) : std::nullopt;
  }
  // The ids of several pieces, -1 where there is none, looked up together so that memory is waited for once.
  void find(std::span<const std::string_view> pieces, TokenId* ids) const;
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < pieces_.size() && pieces_[id].begin != kNone;
  }
  // The piece of an id; "" where it has none.
  std::string_view piece(TokenId id) const { return has(id) ? text_of(pieces_[id]) : std::string_view(); }
  size_t count() const { return count_; }
  // Whether every piece has one id and every id one piece.
  bool one_to_one() const { return one_to_one_; }
  // One more than the highest id.
  TokenId end_id() const { return static_cast<TokenId>(pieces_.size()); }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Piece {
    uint32_t begin = kNone, length = 0;
  };
  struct Slot {
    Piece piece;
    TokenId id = 0;
    uint32_t hash : 31 = 0;
    uint32_t taken : 1 = 0;
  };
  std::string_view text_of(const Piece& piece) const { return {texts_.data() + piece.begin, piece.length}; }
  static uint64_t hash_of(std::string_view piece);
  // Of the slot that holds a piece, or would.
  size_t place(std::string_view piece) const { return place(piece, hash_of(piece)); }
  size_t place(std::string_view piece, uint64_t hash) const {
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].taken && (slots_[i].hash != hash >> 33 || text_of(slots_[i].piece) != piece))
      i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  void grow(size_t slots);

  std::vector<char> texts_;
  std::vector<Slot> slots_;
  std::vector<Piece> pieces_;  // by id
  size_t count_ = 0;
  bool one_to_one_ = true;
};

}  // namespace megatron::tokenizers
