#include "megatron/inference/ngram_draft.h"

#include <algorithm>

namespace megatron {
namespace {

uint64_t ngram_hash(std::span<const int64_t> tokens) {
  uint64_t hash = 0x9e3779b97f4a7c15u * tokens.size();
  for (int64_t token : tokens) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

// The `count` tokens in front of `end`.
std::span<const int64_t> tokens_before(std::span<const int64_t> text, int64_t end, int64_t count) {
  return text.subspan(static_cast<size_t>(end - count), static_cast<size_t>(count));
}

}  // namespace

void NgramDraft::learn(std::span<const int64_t> text) {
  for (int64_t end = learnt_ + 1; end < std::ssize(text); ++end)
    for (int64_t n = kShortest; n <= std::min(kLongest, end); ++n)
      ends_[ngram_hash(tokens_before(text, end, n))] = end;
  learnt_ = std::max(learnt_, std::ssize(text) - 1);
}

std::vector<int64_t> NgramDraft::propose(std::span<const int64_t> text, int64_t count) {
  learn(text);
  const int64_t length = std::ssize(text);
  for (int64_t n = std::min(kLongest, length - 1); n >= kShortest; --n) {
    const auto last = tokens_before(text, length, n);
    const auto found = ends_.find(ngram_hash(last));
    if (found == ends_.end() || !std::ranges::equal(tokens_before(text, found->second, n), last)) continue;
    std::vector<int64_t> draft;
    for (int64_t at = found->second; std::ssize(draft) < count; ++at)
      draft.push_back(at < length ? text[static_cast<size_t>(at)] : draft[static_cast<size_t>(at - length)]);
    return draft;
  }
  return {};
}

}  // namespace megatron
