#include "megatron/datasets/compression/snappy.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "megatron/base/error.h"

namespace megatron {
namespace {

void append_varint(std::string& out, size_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_literal(std::string& out, const char* data, size_t length) {
  if (length == 0) return;
  if (length <= 60) {
    out += static_cast<char>((length - 1) << 2);
  } else {
    size_t bytes = 1;
    while (bytes < 4 && (length - 1) >> (8 * bytes)) ++bytes;
    out += static_cast<char>((59 + bytes) << 2);
    for (size_t i = 0; i < bytes; ++i) out += static_cast<char>((length - 1) >> (8 * i));
  }
  out.append(data, length);
}

void append_copy(std::string& out, size_t offset, size_t length) {
  while (length > 0) {
    const size_t part = std::min<size_t>(length, 64);
    out += static_cast<char>(((part - 1) << 2) | 2);
    out += static_cast<char>(offset);
    out += static_cast<char>(offset >> 8);
    length -= part;
  }
}

uint32_t load32(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

}  // namespace

std::string snappy_decompress(std::span<const std::byte> in, size_t size, const std::string& origin) {
  size_t at = 0, claimed = 0;
  auto next = [&]() -> size_t {
    require(at < in.size(), "{}: Snappy data ends after {} bytes", origin, in.size());
    return static_cast<size_t>(in[at++]);
  };
  for (int shift = 0;; shift += 7) {
    const size_t byte = next();
    require(shift < 35, "{}: malformed Snappy length", origin);
    claimed |= (byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  require(claimed == size, "{}: Snappy data of {} bytes, expected {}", origin, claimed, size);
  // One byte of input gives at most 64 of output: larger claims are refused before memory is taken.
  require(size / 64 <= in.size(), "{}: {} bytes of Snappy data cannot give {}", origin, in.size(), size);
  std::string out;
  out.reserve(size);
  while (at < in.size()) {
    const size_t tag = next();
    size_t length = (tag >> 2) + 1, offset = 0;
    if ((tag & 3) == 0) {
      if (length > 60) {
        const size_t bytes = length - 60;
        length = 0;
        for (size_t i = 0; i < bytes; ++i) length |= next() << (8 * i);
        ++length;
      }
      require(length <= in.size() - at && length <= size - out.size(),
              "{}: a Snappy literal of {} bytes is too long", origin, length);
      out.append(reinterpret_cast<const char*>(in.data()) + at, length);
      at += length;
      continue;
    }
    if ((tag & 3) == 1) {
      length = ((tag >> 2) & 7) + 4;
      offset = (tag >> 5) << 8 | next();
    } else {
      const size_t bytes = (tag & 3) == 2 ? 2 : 4;
      for (size_t i = 0; i < bytes; ++i) offset |= next() << (8 * i);
    }
    require(offset > 0 && offset <= out.size() && length <= size - out.size(),
            "{}: a Snappy copy of {} bytes from {} back leaves the data", origin, length, offset);
    for (size_t i = 0; i < length; ++i) out += out[out.size() - offset];
  }
  require(out.size() == size, "{}: Snappy data gives {} bytes, expected {}", origin, out.size(), size);
  return out;
}

std::string snappy_compress(std::span<const std::byte> in) {
  const char* data = reinterpret_cast<const char*>(in.data());
  const size_t size = in.size();
  std::string out;
  append_varint(out, size);
  constexpr size_t kReach = 65535;
  constexpr int kBits = 14;
  std::vector<size_t> table(size_t{1} << kBits, SIZE_MAX);  // last place of each hashed word
  size_t begin = 0, at = 0;
  while (at + 4 <= size) {
    size_t& entry = table[(load32(data + at) * 0x1e35a7bdu) >> (32 - kBits)];
    const size_t match = entry;
    entry = at;
    if (match == SIZE_MAX || at - match > kReach || load32(data + match) != load32(data + at)) {
      ++at;
      continue;
    }
    size_t length = 4;
    while (at + length < size && data[match + length] == data[at + length]) ++length;
    append_literal(out, data + begin, at - begin);
    append_copy(out, at - match, length);
    begin = at += length;
  }
  append_literal(out, data + begin, size - begin);
  return out;
}

}  // namespace megatron
