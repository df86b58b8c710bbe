#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

// What a SentencePiece `.model` holds, as far as encoding and decoding need it.
struct SentencePieceFile {
  enum class Kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum class Algorithm { unigram = 1, bpe = 2, word = 3, character = 4 };
  struct Piece {
    std::string text;
    float score = 0;
    Kind kind = Kind::normal;
  };

  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false, whitespace_as_suffix = false;
  bool dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  std::string char_map, denormalizer_map;
  std::string unknown_surface = " \xE2\x81\x87 ";
  std::string unknown_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  // Reads the protobuf; `origin` begins the message of the Error that a malformed one gives.
  static SentencePieceFile parse(std::string_view bytes, std::string_view origin);
};

}  // namespace megatron::tokenizers
