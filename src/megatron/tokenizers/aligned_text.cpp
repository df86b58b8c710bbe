#include "megatron/tokenizers/aligned_text.h"

#include "megatron/tokenizers/models/byte_characters.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron::tokenizers {
namespace {

bool trails(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

// The text is valid UTF-8, so the character around a byte ends at the next byte that does not trail.
ByteRange AlignedText::character_at(size_t byte) const {
  size_t begin = byte, end = byte + 1;
  while (begin > 0 && trails(text_[begin])) --begin;
  while (end < text_.size() && trails(text_[end])) ++end;
  return {origin_ + static_cast<uint32_t>(begin), origin_ + static_cast<uint32_t>(end)};
}

void AlignedText::materialize() {
  if (!tracked_ || !alignments_.empty()) return;
  alignments_.reserve(text_.size());
  for (size_t i = 0; i < text_.size();) {
    const ByteRange character = character_at(i);
    alignments_.insert(alignments_.end(), character.end - character.begin, character);
    i += character.end - character.begin;
  }
}

ByteRange AlignedText::original(ByteRange range) const {
  if (range.begin == range.end) return {origin_ + range.begin, origin_ + range.end};
  return {aligned(range.begin).begin, aligned(range.end - 1).end};
}

AlignedText AlignedText::slice(ByteRange range) const {
  const uint32_t origin = range.begin < text_.size() ? aligned(range.begin).begin : origin_ + range.begin;
  AlignedText part(view(range), origin, tracked_);
  if (!alignments_.empty())
    part.alignments_.assign(alignments_.begin() + range.begin, alignments_.begin() + range.end);
  return part;
}

void AlignedText::transform(std::span<const TextChange> changes, size_t removed) {
  materialize();
  std::string text;
  text.reserve(text_.size());
  std::vector<ByteRange> alignments;
  size_t at = 0;
  const auto skip = [&](size_t characters) {
    for (; characters > 0 && at < text_.size(); --characters)
      at += decode_utf8(std::string_view(text_).substr(at)).length;
  };
  skip(removed);
  for (const TextChange& change : changes) {
    append_utf8(text, change.point);
    if (tracked_) {
      ByteRange range{origin_, origin_};
      if (change.change > 0) {
        if (at > 0) range = alignments_[at - 1];
      } else if (at < alignments_.size()) {
        range = alignments_[at];
      }
      alignments.insert(alignments.end(), utf8_length(change.point), range);
    }
    if (change.change <= 0) skip(1 + static_cast<size_t>(-change.change));
  }
  text_ = std::move(text);
  alignments_ = std::move(alignments);
}

void AlignedText::replace(std::span<const ByteRange> ranges, std::string_view content) {
  if (ranges.empty()) return;
  materialize();
  std::string text;
  text.reserve(text_.size());
  std::vector<ByteRange> alignments;
  size_t last = 0;
  const auto keep = [&](size_t end) {
    text.append(text_, last, end - last);
    if (tracked_) alignments.insert(alignments.end(), alignments_.begin() + last, alignments_.begin() + end);
  };
  for (const ByteRange& range : ranges) {
    keep(range.begin);
    text += content;
    if (tracked_)
      alignments.insert(alignments.end(), content.size(),
                        range.end > 0 ? alignments_[range.end - 1] : ByteRange{origin_, origin_});
    last = range.end;
  }
  keep(text_.size());
  text_ = std::move(text);
  alignments_ = std::move(alignments);
}

void AlignedText::prepend(std::string_view content) {
  if (text_.empty()) return;
  materialize();
  if (tracked_) alignments_.insert(alignments_.begin(), content.size(), ByteRange(alignments_[0]));
  text_.insert(0, content);
}

void AlignedText::to_byte_characters() {
  materialize();
  std::string text;
  text.reserve(text_.size() * 2);
  std::vector<ByteRange> alignments;
  for (size_t i = 0; i < text_.size(); ++i) {
    const std::string_view character = byte_character(static_cast<uint8_t>(text_[i]));
    text += character;
    if (tracked_) alignments.insert(alignments.end(), character.size(), alignments_[i]);
  }
  text_ = std::move(text);
  alignments_ = std::move(alignments);
}

void AlignedText::append(const AlignedText& other, ByteRange range) {
  if (text_.empty() && alignments_.empty()) origin_ = other.origin_;
  text_ += other.view(range);
  if (!tracked_) return;
  for (size_t i = range.begin; i < range.end; ++i) alignments_.push_back(other.aligned(i));
}

}  // namespace megatron::tokenizers
