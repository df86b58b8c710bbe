#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace megatron {

// XXH64 over bytes that come in pieces: faster than any disk, the same on every machine, and what
// `xxh64sum` prints.
class Checksum {
 public:
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  std::string hex() const;  // 16 digits

 private:
  std::array<uint64_t, 4> lanes_ = initial();
  std::array<std::byte, 32> rest_{};  // bytes that do not fill a stripe yet
  size_t rest_bytes_ = 0;
  uint64_t total_ = 0;

  static std::array<uint64_t, 4> initial();
  void stripes(const std::byte* bytes, size_t count);
};

std::string checksum_of(std::span<const std::byte> bytes);
std::string checksum_of_file(const std::string& path);

}  // namespace megatron
