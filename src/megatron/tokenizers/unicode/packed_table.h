#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatron::tokenizers {

// Reads the variable-length numbers that make_tables.py packed as base64.
class PackedNumbers {
 public:
  explicit PackedNumbers(std::string_view base64) {
    uint32_t bits = 0;
    int held = 0;
    bytes_.reserve(base64.size() * 3 / 4);
    for (char c : base64) {
      if (c == '=') break;
      bits = bits << 6 | value(c);
      held += 6;
      if (held >= 8) bytes_.push_back(static_cast<uint8_t>(bits >> (held -= 8)));
    }
  }
  bool more() const { return at_ < bytes_.size(); }
  uint32_t next() {
    uint32_t number = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = bytes_[at_++];
      number |= static_cast<uint32_t>(byte & 127) << shift;
      if (byte < 128) return number;
    }
  }
  int32_t next_signed() {
    const uint32_t number = next();
    return number & 1 ? -static_cast<int32_t>((number + 1) / 2) : static_cast<int32_t>(number / 2);
  }

 private:
  static uint32_t value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : 63;
  }
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
};

constexpr char32_t kPoints = 0x110000;  // code points of Unicode

// A byte per code point in blocks of 256, equal blocks stored once.
class TwoStageTable {
 public:
  explicit TwoStageTable(std::string_view packed_runs) {
    std::vector<uint8_t> flat;
    flat.reserve(kPoints);
    PackedNumbers numbers(packed_runs);
    while (numbers.more()) {
      const uint32_t length = numbers.next();
      flat.insert(flat.end(), length, static_cast<uint8_t>(numbers.next()));
    }
    std::unordered_map<std::string, uint16_t> known;
    for (size_t i = 0; i < block_of_.size(); ++i) {
      std::string block(flat.begin() + i * 256, flat.begin() + (i + 1) * 256);
      const auto [found, added] = known.try_emplace(block, static_cast<uint16_t>(known.size()));
      if (added) values_.insert(values_.end(), block.begin(), block.end());
      block_of_[i] = found->second;
    }
  }
  uint8_t operator[](char32_t point) const { return values_[block_of_[point >> 8] * 256 + (point & 255)]; }

 private:
  std::array<uint16_t, kPoints / 256> block_of_;
  std::vector<uint8_t> values_;
};

}  // namespace megatron::tokenizers
