#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

// Token t is bit t % 32 of word t / 32.
using TokenMask = std::vector<uint32_t>;

inline void set_token(TokenMask& mask, size_t token) { mask[token / 32] |= 1U << (token % 32); }
inline bool has_token(const TokenMask& mask, size_t token) { return (mask[token / 32] >> (token % 32)) & 1U; }
inline void set_tokens(TokenMask& mask, std::span<const int64_t> tokens) {
  for (int64_t token : tokens) set_token(mask, static_cast<size_t>(token));
}

}  // namespace megatron
