#include "megatron/tokenizers/models/merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::tokenizers {
namespace {

constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();

constexpr int32_t kNoKey = std::numeric_limits<int32_t>::max();
constexpr uint32_t kMostRank = kNoKey >> 7;  // a key has seven bits for the place

// Words of a few symbols: the least key of all is found by looking at each, several at a time.
void merge_few(const MergeTable& merges, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  int32_t* const keys = scratch.keys;
  TokenId *const ids = scratch.ids, *const merged = scratch.merged;
  uint32_t* const lengths = scratch.lengths;
  uint8_t *const next = scratch.next, *const previous = scratch.previous;
  const auto count = static_cast<int>(symbols.size());
  for (int i = 0; i < count; ++i) {
    ids[i] = symbols[i].id;
    lengths[i] = symbols[i].length;
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i] = static_cast<uint8_t>(i - 1);
  }
  const auto look = [&](int i) {
    keys[i] = kNoKey;
    if (next[i] >= count) return;
    const MergeTable::Merge merge = merges.find(ids[i], ids[next[i]]);
    if (merge.rank == MergeTable::kNone) return;
    keys[i] = static_cast<int32_t>(merge.rank << 7) | i;
    merged[i] = merge.id;
  };
  for (int i = 0; i < count; ++i) look(i);
  const int padded = (count + kKeyLanes - 1) / kKeyLanes * kKeyLanes;
  for (int i = count; i < padded; ++i) keys[i] = kNoKey;
  for (;;) {
    const int32_t least = least_key(keys, padded);
    if (least == kNoKey) break;
    const int at = least & 127, gone = next[at];
    ids[at] = merged[at];
    lengths[at] += lengths[gone];
    keys[gone] = kNoKey;
    next[at] = next[gone];
    if (next[at] < count) previous[next[at]] = static_cast<uint8_t>(at);
    look(at);
    if (at > 0) look(previous[at]);
  }
  symbols.clear();
  for (int i = 0; i < count; i = next[i]) symbols.push_back({ids[i], lengths[i]});
}

// Long words: a heap of candidates, stale ones skipped.
void merge_many(const MergeTable& merges, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  const auto count = static_cast<uint32_t>(symbols.size());
  nodes.resize(count);
  heap.clear();
  const auto look = [&](uint32_t i) {
    const uint32_t next = nodes[i].next;
    const MergeTable::Merge merge =
        next == kEnd ? MergeTable::Merge{} : merges.find(nodes[i].id, nodes[next].id);
    nodes[i].rank = merge.rank;
    nodes[i].merged = merge.id;
    return merge.rank != MergeTable::kNone;
  };
  const auto key = [&](uint32_t i) { return uint64_t{nodes[i].rank} << 32 | i; };
  for (uint32_t i = 0; i < count; ++i)
    nodes[i] = {
        symbols[i].id, symbols[i].length, i == 0 ? kEnd : i - 1, i + 1 < count ? i + 1 : kEnd, kEnd, 0};
  for (uint32_t i = 0; i < count; ++i)
    if (look(i)) heap.push_back(key(i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    auto& node = nodes[i];
    if (node.length == 0 || node.rank != top >> 32 || node.rank == MergeTable::kNone) continue;
    auto& gone = nodes[node.next];
    node.id = node.merged;
    node.length += gone.length;
    gone.length = 0;
    node.next = gone.next;
    if (node.next != kEnd) nodes[node.next].previous = i;
    const auto push = [&](uint32_t at) {
      if (!look(at)) return;
      heap.push_back(key(at));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    push(i);
    if (node.previous != kEnd) push(node.previous);
  }
  symbols.clear();
  for (uint32_t i = 0; i != kEnd; i = nodes[i].next) symbols.push_back({nodes[i].id, nodes[i].length});
}

}  // namespace

void MergeTable::grow(size_t slots) {
  const ZeroedArray<uint64_t> old = std::exchange(slots_, ZeroedArray<uint64_t>(slots));
  const ZeroedArray<TokenId> old_ids = std::exchange(ids_, ZeroedArray<TokenId>(slots));
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
  for (size_t k = 0; k < old.size(); ++k) {
    if (old[k] == 0) continue;
    size_t i = (old[k] >> kRankBits) * kFactor >> shift_;
    while (slots_[i] != 0) i = (i + 1) & mask_;
    slots_[i] = old[k];
    ids_[i] = old_ids[k];
  }
}

void MergeTable::reserve(size_t merges) {
  if (const size_t slots = std::bit_ceil(merges + merges / 2 + 1); slots > slots_.size()) grow(slots);
}

void MergeTable::add(TokenId left, TokenId right, uint32_t rank, TokenId id, bool replace) {
  require(left >= 0 && right >= 0 && !((left | right) >> kIdBits) && rank < kMaxRank,
          "BPE: the merge of {} and {} has rank {}; ids are below {} and ranks below {}", left, right, rank,
          1 << kIdBits, kMaxRank);
  if (3 * (size_ + 1) > 2 * slots_.size()) grow(std::max<size_t>(1024, 2 * slots_.size()));
  const uint64_t key = key_of(left, right), hash = key * kFactor, bit = hash >> (64 - kFilterBits);
  filter_[bit >> 6] |= uint64_t{1} << (bit & 63);
  max_rank_ = std::max(max_rank_, rank);
  size_t i = hash >> shift_;
  while (slots_[i] != 0 && slots_[i] >> kRankBits != key) i = (i + 1) & mask_;
  if (slots_[i] != 0 && !replace) return;
  size_ += slots_[i] == 0;
  slots_[i] = key << kRankBits | (rank + 1);
  ids_[i] = id;
}

void merge_symbols(const MergeTable& merges, std::vector<Symbol>& symbols, MergeScratch& scratch) {
  if (symbols.size() < 2 || merges.size() == 0) return;
  if (symbols.size() <= MergeScratch::kFew && merges.max_rank() < kMostRank)
    merge_few(merges, symbols, scratch);
  else
    merge_many(merges, symbols, scratch);
}

}  // namespace megatron::tokenizers
