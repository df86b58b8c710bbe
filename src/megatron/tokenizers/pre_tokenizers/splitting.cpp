#include "megatron/tokenizers/pre_tokenizers/splitting.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::tokenizers {
namespace {

struct Part {
  ByteRange range;
  bool match;
};

// Joins each match with the part before it, unless that is a match too.
std::vector<ByteRange> merge_with_previous(std::span<const Part> parts) {
  std::vector<ByteRange> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.match && !previous && !merged.empty())
      merged.back().end = part.range.end;
    else
      merged.push_back(part.range);
    previous = part.match;
  }
  return merged;
}

std::vector<ByteRange> merge_with_next(std::span<const Part> parts) {
  std::vector<ByteRange> merged;
  bool next = false;
  for (size_t i = parts.size(); i-- > 0;) {
    if (parts[i].match && !next && !merged.empty())
      merged.back().begin = parts[i].range.begin;
    else
      merged.push_back(parts[i].range);
    next = parts[i].match;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<ByteRange> merge_contiguous(std::span<const Part> parts) {
  std::vector<ByteRange> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.match == previous && !merged.empty())
      merged.back().end = part.range.end;
    else
      merged.push_back(part.range);
    previous = part.match;
  }
  return merged;
}

}  // namespace

SplitBehavior parse_split_behavior(std::string_view name) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail("tokenizer.json: split behavior '{}' is not known", name);
}

std::vector<ByteRange> split_parts(std::span<const ByteRange> matches, size_t size, SplitBehavior behavior,
                                   bool invert) {
  std::vector<Part> parts;
  uint32_t last = 0;
  const auto end = static_cast<uint32_t>(size);
  for (const ByteRange& match : matches) {
    if (last < match.begin) parts.push_back({{last, match.begin}, invert});
    parts.push_back({match, !invert});
    last = match.end;
  }
  if (last < end) parts.push_back({{last, end}, invert});
  switch (behavior) {
    case SplitBehavior::merged_with_previous:
      return merge_with_previous(parts);
    case SplitBehavior::merged_with_next:
      return merge_with_next(parts);
    case SplitBehavior::contiguous:
      return merge_contiguous(parts);
    case SplitBehavior::removed:
    case SplitBehavior::isolated:
      break;
  }
  std::vector<ByteRange> kept;
  for (const Part& part : parts)
    if (!part.match || behavior == SplitBehavior::isolated) kept.push_back(part.range);
  return kept;
}

}  // namespace megatron::tokenizers
