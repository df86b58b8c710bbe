#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/models/byte_trie.h"
#include "megatron/tokenizers/normalizers/char_map.h"
#include "megatron/tokenizers/sentencepiece/model_file.h"

namespace megatron::tokenizers {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // ▁

// SentencePiece's normalization: its character map, white space joined and written as ▁, and a ▁ in front.
class SpNormalizer {
 public:
  SpNormalizer(const SentencePieceFile& file, std::string_view origin);

  // `places`, where given, becomes for every byte of the result, and its end, the byte of the text from which
  // it came.
  std::string apply(std::string_view text, std::vector<uint32_t>* places) const;
  // The longest user-defined piece that a text begins with, as its length; 0 where there is none.
  size_t user_defined(std::string_view text) const;

 private:
  struct Prefix {
    std::string_view text;
    size_t consumed;
  };
  Prefix prefix(std::string_view text) const;

  CharMap map_;
  ByteTrie user_defined_;
  bool any_user_defined_ = false;
  bool dummy_prefix_, remove_extra_, escape_, suffix_;
};

}  // namespace megatron::tokenizers
