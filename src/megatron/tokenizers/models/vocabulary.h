#pragma once

#include <cstdint>
#include <optional>
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

// Pieces and their ids, both ways. Ids may have gaps.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // the texts stay where they are
  Vocabulary& operator=(Vocabulary&&) = default;

  // A second piece of the same id is found by its text alone, a second id of a piece replaces the first.
  void add(std::string piece, TokenId id);
  std::optional<TokenId> find(std::string_view piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < pieces_.size() && pieces_[id] != nullptr;
  }
  // The piece of an id; "" where it has none.
  std::string_view piece(TokenId id) const {
    return has(id) ? std::string_view(*pieces_[id]) : std::string_view();
  }
  size_t count() const { return ids_.size(); }
  // One more than the highest id.
  TokenId end_id() const { return static_cast<TokenId>(pieces_.size()); }

 private:
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids_;
  std::vector<const std::string*> pieces_;  // keys of ids_, whose places are stable
};

}  // namespace megatron::tokenizers
