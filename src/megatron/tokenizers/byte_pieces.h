#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/models/vocabulary.h"

namespace megatron::tokenizers {

// The pieces of a byte-level vocabulary as bytes, end to end in one block.
class BytePieces {
 public:
  // Makes room for so many pieces.
  explicit BytePieces(size_t count) {
    entries_.reserve(count);
    bytes_.reserve(8 * count);
  }

  void add(std::string_view bytes, TokenId id) {
    bytes_ += bytes;
    entries_.push_back({bytes_.size(), id});
  }
  // Adds the bytes of a piece that is written in GPT-2's alphabet and returns how many they are. A piece with
  // other characters, or without any, is left out: 0.
  size_t add_characters(std::string_view piece, TokenId id);

  size_t count() const { return entries_.size(); }
  // Calls `visit(bytes, readable, id)` for each piece; `readable` bytes of memory may be read from its first
  // one on.
  template <class Visit>
  void each(Visit visit) const {
    size_t begin = 0;
    for (const auto& [end, id] : entries_) {
      visit(std::string_view(bytes_).substr(begin, end - begin), bytes_.size() - begin, id);
      begin = end;
    }
  }

 private:
  struct Entry {
    size_t end;
    TokenId id;
  };
  std::string bytes_;
  std::vector<Entry> entries_;
};

}  // namespace megatron::tokenizers
