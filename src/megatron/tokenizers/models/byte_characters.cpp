#include "megatron/tokenizers/models/byte_characters.h"

#include <array>

namespace megatron::tokenizers {
namespace {

// Printable bytes of Latin-1 stand for themselves, the others are numbered from U+0100 on.
constexpr bool printable(int byte) {
  return (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
}

struct Alphabet {
  std::array<char, 3 * 256> text{};  // two bytes each, length behind them
  std::array<int16_t, 324> byte_of{};

  constexpr Alphabet() {
    byte_of.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const int point = printable(byte) ? byte : next++;
      byte_of[point] = static_cast<int16_t>(byte);
      char* out = &text[3 * byte];
      if (point < 128) {
        out[0] = static_cast<char>(point);
        out[2] = 1;
      } else {
        out[0] = static_cast<char>(0xC0 | point >> 6);
        out[1] = static_cast<char>(0x80 | (point & 63));
        out[2] = 2;
      }
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string_view byte_character(uint8_t byte) {
  const char* text = &kAlphabet.text[3 * byte];
  return {text, static_cast<size_t>(text[2])};
}

std::optional<uint8_t> byte_of_character(char32_t point) {
  if (point >= kAlphabet.byte_of.size() || kAlphabet.byte_of[point] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.byte_of[point]);
}

bool append_bytes_of_piece(std::string_view piece, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t i = 0; i < piece.size();) {
    // Characters of the alphabet have one or two bytes.
    const auto lead = static_cast<uint8_t>(piece[i]);
    int16_t byte = -1;
    if (lead < 0x80) {
      byte = kAlphabet.byte_of[lead];
      i += 1;
    } else if (lead >= 0xC2 && lead <= 0xC5 && i + 1 < piece.size()) {
      const auto trail = static_cast<uint8_t>(piece[i + 1]);
      const size_t point = size_t{lead & 0x1Fu} << 6 | (trail & 0x3F);
      if ((trail & 0xC0) == 0x80 && point < kAlphabet.byte_of.size()) byte = kAlphabet.byte_of[point];
      i += 2;
    }
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(byte);
  }
  return true;
}

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  if (!append_bytes_of_piece(piece, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace megatron::tokenizers
