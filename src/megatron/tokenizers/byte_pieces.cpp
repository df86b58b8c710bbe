#include "megatron/tokenizers/byte_pieces.h"

#include "megatron/tokenizers/models/byte_characters.h"

namespace megatron::tokenizers {

size_t BytePieces::add_characters(std::string_view piece, TokenId id) {
  const size_t begin = bytes_.size();
  if (!append_bytes_of_piece(piece, bytes_)) return 0;
  const size_t size = bytes_.size() - begin;
  if (size > 0) entries_.push_back({bytes_.size(), id});
  return size;
}

}  // namespace megatron::tokenizers
