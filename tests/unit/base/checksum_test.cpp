#include "megatron/base/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace megatron {
namespace {

std::string sum(std::string_view text) { return checksum_of(std::as_bytes(std::span(text))); }

std::string counting(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + 3);
  return text;
}

// Values that xxh64sum prints.
TEST(Checksum, IsXxh64) {
  EXPECT_EQ(sum(""), "ef46db3751d8e999");
  EXPECT_EQ(sum("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(sum("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(sum("Nobody inspects the spammish repetition"), "fbcea83c8a378bf1");
}

TEST(Checksum, PiecesDoNotMatter) {
  for (size_t size : {0, 1, 31, 32, 33, 63, 64, 100, 1000}) {
    const std::string text = counting(size);
    for (size_t piece : {1, 5, 8, 31, 32, 33, 64}) {
      Checksum checksum;
      auto bytes = std::as_bytes(std::span(text));
      while (!bytes.empty()) {
        auto part = bytes.first(std::min(piece, bytes.size()));
        checksum.update(part);
        bytes = bytes.subspan(part.size());
      }
      EXPECT_EQ(checksum.hex(), sum(text)) << size << " in pieces of " << piece;
    }
  }
}

TEST(Checksum, EveryBitMatters) {
  const std::string text = counting(71);
  const std::string whole = sum(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(sum(flipped), whole) << bit;
  }
  EXPECT_NE(sum(text + '\0'), whole);
}

}  // namespace
}  // namespace megatron
