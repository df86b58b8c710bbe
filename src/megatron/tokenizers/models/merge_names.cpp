#include "megatron/tokenizers/models/merge_names.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "megatron/base/error.h"

namespace megatron::tokenizers {
namespace {

struct MergeIds {
  TokenId left, right, whole;
};

// Finds the ids of some merges. They are looked up several at a time, so that their places in the vocabulary
// come from memory together.
void find_ids(std::span<const MergeNames> merges, size_t first_rank, const Vocabulary& vocabulary,
              std::string_view continuing_prefix, MergeIds* found) {
  constexpr size_t kAtOnce = 16;
  std::array<std::string_view, 3 * kAtOnce> pieces;
  std::array<TokenId, 3 * kAtOnce> ids;
  std::string wholes;  // of the merges at hand, end to end
  std::array<size_t, kAtOnce + 1> ends{};
  for (size_t begin = 0; begin < merges.size(); begin += kAtOnce) {
    const size_t count = std::min(kAtOnce, merges.size() - begin);
    wholes.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto [left, right] = merges[begin + i];
      pieces[2 * i] = left;
      pieces[2 * i + 1] = right;
      wholes += left;
      wholes += right.size() >= continuing_prefix.size() ? right.substr(continuing_prefix.size()) : right;
      ends[i + 1] = wholes.size();
    }
    for (size_t i = 0; i < count; ++i)
      pieces[2 * count + i] = std::string_view(wholes).substr(ends[i], ends[i + 1] - ends[i]);
    vocabulary.find({pieces.data(), 3 * count}, ids.data());
    for (size_t i = 0; i < count; ++i) {
      const auto [left, right] = merges[begin + i];
      const TokenId a = ids[2 * i], b = ids[2 * i + 1], whole = ids[2 * count + i];
      require(a >= 0 && b >= 0, "BPE: merge {} ('{}' '{}') names a piece that the vocabulary lacks",
              first_rank + begin + i, left, right);
      require(whole >= 0, "BPE: merge {} makes '{}', which the vocabulary lacks", first_rank + begin + i,
              pieces[2 * count + i]);
      found[begin + i] = {a, b, whole};
    }
  }
}

}  // namespace

std::optional<MergeNames> split_merge(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return MergeNames{text.substr(0, space), text.substr(space + 1)};
}

MergeTable make_merge_table(std::span<const MergeNames> merges, const Vocabulary& vocabulary,
                            std::string_view continuing_prefix) {
  std::vector<MergeIds> found(merges.size());
  const size_t half = merges.size() < 10000 ? merges.size() : merges.size() / 2;
  std::exception_ptr fault;
  {
    std::jthread helper;
    if (half < merges.size())
      helper = std::jthread([&] {
        try {
          find_ids(merges.subspan(half), half, vocabulary, continuing_prefix, found.data() + half);
        } catch (...) {
          fault = std::current_exception();
        }
      });
    find_ids(merges.first(half), 0, vocabulary, continuing_prefix,
             found.data());  // the first fault is told, as it comes first
  }
  if (fault) std::rethrow_exception(fault);
  MergeTable table;
  table.reserve(merges.size());
  for (size_t i = 0; i < found.size(); ++i)
    table.add(found[i].left, found[i].right, static_cast<uint32_t>(i), found[i].whole);
  return table;
}

}  // namespace megatron::tokenizers
