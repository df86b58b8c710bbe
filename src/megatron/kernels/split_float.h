#pragma once

#include <cstdint>

namespace megatron {

// An fp32 number, by its bits, as a bf16 one and what the fp32 number's bits are above it. The bf16 number is
// the nearest one, halves away from zero, so that 16 bits are enough for the rest.
struct SplitFloat {
  uint16_t high;
  int16_t low;
};

constexpr SplitFloat split_float(uint32_t bits) {
  const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;  // else it must stay none after rounding
  if (!number) return {static_cast<uint16_t>(bits >> 16 | 0x40u), 0};
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<int16_t>(bits & 0xffffu)};
}

constexpr uint32_t join_float(SplitFloat parts) {
  return (static_cast<uint32_t>(parts.high) << 16) + static_cast<uint32_t>(static_cast<int32_t>(parts.low));
}

// What joins a given bf16 number to the fp32 one, or as near to it as 16 bits reach: half a step of bf16.
constexpr int16_t rest_of_float(uint32_t bits, uint16_t high) {
  const int64_t rest = static_cast<int64_t>(bits) - (static_cast<int64_t>(high) << 16);
  return static_cast<int16_t>(rest < -0x8000 ? -0x8000 : rest > 0x7fff ? 0x7fff : rest);
}

}  // namespace megatron
