#include "megatron/tokenizers/models/vocabulary.h"

#include "megatron/base/error.h"

namespace megatron::tokenizers {

void Vocabulary::add(std::string piece, TokenId id) {
  constexpr TokenId kMost = 1 << 22;  // a malformed file cannot ask for more memory than this many places
  require(id >= 0 && id < kMost, "vocabulary: piece '{}' has id {}, expected 0 to {}", piece, id, kMost - 1);
  const auto [entry, added] = ids_.insert_or_assign(std::move(piece), id);
  if (static_cast<size_t>(id) >= pieces_.size()) pieces_.resize(static_cast<size_t>(id) + 1);
  pieces_[id] = &entry->first;
}

}  // namespace megatron::tokenizers
