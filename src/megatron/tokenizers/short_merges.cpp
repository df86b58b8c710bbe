#include "megatron/tokenizers/short_merges.h"

#include <bit>
#include <limits>

namespace megatron::tokenizers {
namespace {

constexpr int32_t kNoKey = std::numeric_limits<int32_t>::max();

// Ranks have at most 26 bits, which MergeTable sees to.
int32_t key_of(MergeTable::Merge merge, int place) {
  return merge.rank == MergeTable::kNone ? kNoKey : static_cast<int32_t>(merge.rank << 5) | place;
}

}  // namespace

ShortMerges::ShortMerges(const std::array<TokenId, 256>& byte_ids, std::shared_ptr<const MergeTable> merges)
    : byte_ids_(byte_ids), merges_(std::move(merges)) {
  first_.reserve(1 << 16);
  for (const TokenId left : byte_ids_)
    for (const TokenId right : byte_ids_) first_.push_back(merges_->find(left, right));
}

void ShortMerges::begin(std::string_view text, Word& word) const {
  const auto count = static_cast<int>(text.size());
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (int i = 0; i < count; ++i) word.symbols_[i] = byte_ids_[bytes[i]];
  for (int i = 0; i + 1 < count; ++i) {
    const MergeTable::Merge merge = first_[size_t{bytes[i]} << 8 | bytes[i + 1]];
    word.keys_[i] = key_of(merge, i);
    word.merged_[i] = merge.id;
  }
  word.padded_ = (count + kKeyLanes - 1) / kKeyLanes * kKeyLanes;
  for (int i = count - 1; i < word.padded_; ++i) word.keys_[i] = kNoKey;
  word.left_ = ~uint32_t{0} >> (kMost - text.size());
}

// The least key of all is found by looking at each, several at a time.
bool ShortMerges::step(Word& word) const {
  const int32_t least = least_key(word.keys_, word.padded_);
  if (least == kNoKey) return false;
  const int at = least & 31;
  const uint32_t behind = word.left_ & (~uint32_t{1} << at), rest = behind & (behind - 1),
                 before = word.left_ & ~(~uint32_t{0} << at);
  const int gone = std::countr_zero(behind);
  const TokenId symbol = word.symbols_[at] = word.merged_[at];
  word.keys_[gone] = word.keys_[at] = kNoKey;
  word.left_ &= ~(uint32_t{1} << gone);
  word.at_ = at;
  word.pair_ = rest != 0 ? merges_->prepare(symbol, word.symbols_[std::countr_zero(rest)]) : 0;
  word.pair_before_ = 0;
  if (before != 0) {
    word.before_ = 31 - std::countl_zero(before);
    word.keys_[word.before_] = kNoKey;
    word.pair_before_ = merges_->prepare(word.symbols_[word.before_], symbol);
  }
  return true;
}

void ShortMerges::look_up(Word& word) const {
  const auto set = [&](int i, uint64_t pair) {
    const MergeTable::Merge merge = merges_->look_up(pair);
    word.keys_[i] = key_of(merge, i);
    word.merged_[i] = merge.id;
  };
  if (word.pair_ != 0) set(word.at_, word.pair_);
  if (word.pair_before_ != 0) set(word.before_, word.pair_before_);
}

void ShortMerges::merge(std::span<Word> words) const {
  Word* active[kAtOnce];
  size_t count = 0;
  for (Word& word : words) active[count++] = &word;
  while (count > 0) {
    for (size_t i = 0; i < count;) {
      if (step(*active[i]))
        ++i;
      else
        active[i] = active[--count];
    }
    for (size_t i = 0; i < count; ++i) look_up(*active[i]);
  }
}

void ShortMerges::Word::append_to(std::vector<TokenId>& ids) const {
  for (uint32_t left = left_; left != 0; left &= left - 1) ids.push_back(symbols_[std::countr_zero(left)]);
}

}  // namespace megatron::tokenizers
