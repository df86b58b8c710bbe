#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron::tokenizers {

// The printable character by which byte-level vocabularies write a byte, in UTF-8: GPT-2's alphabet.
std::string_view byte_character(uint8_t byte);

// The byte for which a character stands; none where it stands for none.
std::optional<uint8_t> byte_of_character(char32_t point);

// Bytes for which a piece stands; none where one of its characters stands for none.
std::optional<std::string> bytes_of_piece(std::string_view piece);

// The same, appended; false, and nothing is, where there are none.
bool append_bytes_of_piece(std::string_view piece, std::string& bytes);

}  // namespace megatron::tokenizers
