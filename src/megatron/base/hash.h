#pragma once

#include <cstdint>
#include <string_view>

namespace megatron {

// FNV-1a: the same on every machine, for keys that are stored or seed random numbers.
constexpr uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace megatron
