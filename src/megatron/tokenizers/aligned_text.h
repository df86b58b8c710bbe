#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

// Bytes [begin, end) of a text.
struct ByteRange {
  uint32_t begin = 0, end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// One character of a transformed text. `change` says how it came about: 1 it was inserted, 0 it replaces one
// character, -n it replaces that one and n more.
struct TextChange {
  char32_t point;
  int32_t change;
};

// A part of the original text as normalizers and pre-tokenizers change it. Where tracked, it knows for every
// byte the bytes of the original from which it came, by the rules of Hugging Face's NormalizedString.
class AlignedText {
 public:
  AlignedText(std::string_view text, uint32_t origin, bool tracked)
      : text_(text), origin_(origin), tracked_(tracked) {}

  const std::string& text() const { return text_; }
  std::string_view view(ByteRange range) const {
    return std::string_view(text_).substr(range.begin, range.end - range.begin);
  }
  bool tracked() const { return tracked_; }
  uint32_t origin() const { return origin_; }

  // Bytes of the original that a range of this text stands for.
  ByteRange original(ByteRange range) const;
  AlignedText slice(ByteRange range) const;

  // Replaces the text; the first `removed` characters are dropped before the first change.
  void transform(std::span<const TextChange> changes, size_t removed = 0);
  // Replaces each of the ranges, ascending and apart, by `content`.
  void replace(std::span<const ByteRange> ranges, std::string_view content);
  // Both do nothing to an empty text.
  void prepend(std::string_view content);
  // Replaces every byte by the character that stands for it in byte-level vocabularies.
  void to_byte_characters();

  // Appends a part of another text, as it is there.
  void append(const AlignedText& other, ByteRange range);
  // The bytes of the original from which a byte came.
  ByteRange aligned(size_t byte) const {
    return alignments_.empty() ? character_at(byte) : alignments_[byte];
  }

 private:
  ByteRange character_at(size_t byte) const;
  void materialize();

  std::string text_;
  std::vector<ByteRange> alignments_;  // empty: the text is as in the original, from origin_ on
  uint32_t origin_ = 0;
  bool tracked_ = false;
};

}  // namespace megatron::tokenizers
