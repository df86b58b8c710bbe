#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <string>
#include <vector>

#include "megatron/base/crc32c.h"
#include "support/temp_dir.h"

namespace megatron::testing {

inline uint64_t little_endian(std::string_view& bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(bytes.at(i))} << (8 * i);
  bytes.remove_prefix(size);
  return value;
}

inline uint32_t unmasked(uint64_t masked) {
  return std::rotl(static_cast<uint32_t>(masked) - 0xa282ead8u, 15);
}

inline uint32_t crc(std::string_view bytes) { return crc32c(std::as_bytes(std::span(bytes))); }

// The records of a file, their checksums checked.
inline std::vector<std::string> records(const std::string& path) {
  const std::string file = read_text(path);
  std::vector<std::string> found;
  for (std::string_view rest = file; !rest.empty();) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const uint64_t length = little_endian(rest, 8);
    EXPECT_EQ(unmasked(little_endian(rest, 4)), crc(length_bytes));
    found.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    EXPECT_EQ(unmasked(little_endian(rest, 4)), crc(found.back()));
  }
  return found;
}

// The fields of a protobuf message by number; nested messages stay bytes.
struct Field {
  uint64_t number = 0;
  std::string bytes;
};
inline std::map<uint64_t, Field> fields(std::string_view message) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint64_t byte = little_endian(message, 1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  std::map<uint64_t, Field> found;
  while (!message.empty()) {
    const uint64_t key = varint();
    Field& field = found[key >> 3];
    switch (key & 7) {
      case 0:
        field.number = varint();
        break;
      case 1:
        field.number = little_endian(message, 8);
        break;
      case 5:
        field.number = little_endian(message, 4);
        break;
      case 2: {
        const uint64_t size = varint();
        field.bytes = message.substr(0, size);
        message.remove_prefix(size);
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return found;
    }
  }
  return found;
}

inline std::map<uint64_t, Field> summary_value(const std::string& event) {
  return fields(fields(fields(event)[5].bytes)[1].bytes);
}

}  // namespace megatron::testing
