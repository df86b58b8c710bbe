#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron {

// Element types of a .bin file, valued by their code in the .idx header.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, f64 = 6, f32 = 7, u16 = 8 };

constexpr bool is_token_type(uint8_t code) { return code >= 1 && code <= 8; }

constexpr size_t size_of(TokenType type) {
  constexpr size_t sizes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  return sizes[static_cast<size_t>(type)];
}

constexpr std::string_view name_of(TokenType type) {
  constexpr std::string_view names[] = {"",      "uint8",   "int8",    "int16", "int32",
                                        "int64", "float64", "float32", "uint16"};
  return names[static_cast<size_t>(type)];
}

// The type that Megatron writes for a vocabulary: uint16 where ids fit with some room, else int32.
constexpr TokenType token_type_for(std::optional<int64_t> vocab_size) {
  return vocab_size && *vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

// Calls body with a null pointer of the element type: visit_type(type, [&]<class T>(T*) { … }).
template <class Body>
decltype(auto) visit_type(TokenType type, Body&& body) {
  switch (type) {
    case TokenType::u8:
      return body(static_cast<uint8_t*>(nullptr));
    case TokenType::i8:
      return body(static_cast<int8_t*>(nullptr));
    case TokenType::i16:
      return body(static_cast<int16_t*>(nullptr));
    case TokenType::i64:
      return body(static_cast<int64_t*>(nullptr));
    case TokenType::f64:
      return body(static_cast<double*>(nullptr));
    case TokenType::f32:
      return body(static_cast<float*>(nullptr));
    case TokenType::u16:
      return body(static_cast<uint16_t*>(nullptr));
    default:
      return body(static_cast<int32_t*>(nullptr));
  }
}

}  // namespace megatron
