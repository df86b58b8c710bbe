#include "megatron/base/checksum.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "megatron/base/mapped_file.h"

namespace megatron {

namespace {

constexpr uint64_t prime1 = 0x9E3779B185EBCA87u, prime2 = 0xC2B2AE3D27D4EB4Fu, prime3 = 0x165667B19E3779F9u,
                   prime4 = 0x85EBCA77C2B2AE63u, prime5 = 0x27D4EB2F165667C5u;

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

uint64_t mix(uint64_t lane, uint64_t word) { return std::rotl(lane + word * prime2, 31) * prime1; }

}  // namespace

std::array<uint64_t, 4> Checksum::initial() { return {prime1 + prime2, prime2, 0, 0 - prime1}; }

void Checksum::stripes(const std::byte* bytes, size_t count) {
  std::array<uint64_t, 4> lanes = lanes_;  // in registers: bytes may be those of any object, also of this one
  for (const std::byte* end = bytes + count * rest_.size(); bytes != end; bytes += rest_.size())
    for (size_t i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], load<uint64_t>(bytes + 8 * i));
  lanes_ = lanes;
}

void Checksum::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (rest_bytes_ > 0) {
    size_t taken = std::min(bytes.size(), rest_.size() - rest_bytes_);
    std::copy_n(bytes.begin(), taken, rest_.begin() + rest_bytes_);
    rest_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (rest_bytes_ < rest_.size()) return;
    stripes(rest_.data(), 1);
    rest_bytes_ = 0;
  }
  const size_t count = bytes.size() / rest_.size();
  stripes(bytes.data(), count);
  bytes = bytes.subspan(count * rest_.size());
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
  rest_bytes_ = bytes.size();
}

uint64_t Checksum::value() const {
  uint64_t sum = prime5;
  if (total_ >= rest_.size()) {
    constexpr int turns[] = {1, 7, 12, 18};
    sum = 0;
    for (size_t i = 0; i < 4; ++i) sum += std::rotl(lanes_[i], turns[i]);
    for (uint64_t lane : lanes_) sum = (sum ^ mix(0, lane)) * prime1 + prime4;
  }
  sum += total_;
  size_t at = 0;
  for (; at + 8 <= rest_bytes_; at += 8)
    sum = std::rotl(sum ^ mix(0, load<uint64_t>(&rest_[at])), 27) * prime1 + prime4;
  for (; at + 4 <= rest_bytes_; at += 4)
    sum = std::rotl(sum ^ (load<uint32_t>(&rest_[at]) * prime1), 23) * prime2 + prime3;
  for (; at < rest_bytes_; ++at)
    sum = std::rotl(sum ^ (std::to_integer<uint64_t>(rest_[at]) * prime5), 11) * prime1;
  sum = (sum ^ (sum >> 33)) * prime2;
  sum = (sum ^ (sum >> 29)) * prime3;
  return sum ^ (sum >> 32);
}

std::string Checksum::hex() const { return fmt::format("{:016x}", value()); }

std::string checksum_of(std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.update(bytes);
  return checksum.hex();
}

std::string checksum_of_file(const std::string& path) { return checksum_of(MappedFile(path).bytes()); }

}  // namespace megatron
