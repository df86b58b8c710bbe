#include "megatron/inference/constraint/character_tables.h"

#include <algorithm>
#include <string>

namespace megatron {
namespace {

constexpr size_t kFew = 256;  // tokens that are set one by one

template <class List>
List& list_at(std::vector<List>& lists, size_t index) {
  if (lists.size() <= index) lists.resize(index + 1);
  return lists[index];
}

// Tokens below a node by their runs, found by one walk over its subtree.
struct Runs {
  std::vector<std::vector<uint32_t>> whole;                         // tokens by characters
  std::vector<std::vector<std::pair<std::string, int64_t>>> rests;  // and those with a rest
  std::vector<bool> covered, ends;                                  // by node

  Runs(const TokenTrie& trie, TokenTrie::Range range, const CodePoints& points)
      : covered(range.end - range.begin), ends(range.end - range.begin) {
    struct Step {
      size_t node, characters, length;  // of the run: characters and bytes
    };
    std::vector<Step> path = {{0, 0, 0}};  // by depth
    std::string bytes;
    for (size_t i = range.begin; i < range.end;) {
      const TokenTrie::Node& node = trie.nodes()[i];
      const size_t depth = node.depth - range.depth;
      path.resize(depth);
      bytes.resize(depth - 1);
      bytes += static_cast<char>(node.byte);
      const auto [parent, characters, length] = path.back();
      const std::string_view piece = std::string_view(bytes).substr(length);
      const CharacterBytes match = match_character(points, piece);
      if (match == CharacterBytes::none) {
        if (characters > 0)
          add_rests(trie, i, piece, characters);
        else
          for (size_t at = 1; at < path.size(); ++at) covered[path[at].node - range.begin] = false;
        i = node.end;
        continue;
      }
      covered[i - range.begin] = true;
      const bool is_whole = match == CharacterBytes::whole;
      ends[i - range.begin] = is_whole;
      for (int64_t token : trie.tokens(i))
        list_at(whole, characters + 1).push_back(static_cast<uint32_t>(token));
      path.push_back({i, characters + (is_whole ? 1 : 0), is_whole ? depth : length});
      ++i;
    }
  }

 private:
  void add_rests(const TokenTrie& trie, size_t node, std::string_view piece, size_t characters) {
    auto& list = list_at(rests, characters);
    trie.visit_below(node, [&](const std::string& suffix, int64_t token) {
      list.emplace_back(std::string(piece) + suffix, token);
    });
  }
};

TokenTrie trie_of(const std::vector<std::pair<std::string, int64_t>>& texts) {
  std::vector<TokenTrie::Entry> entries;
  entries.reserve(texts.size());
  for (const auto& [text, token] : texts) entries.push_back({text, token});
  return TokenTrie(std::move(entries));
}

}  // namespace

CharacterTable::CharacterTable(const TokenTrie& trie, TokenTrie::Range range, const CodePoints& points,
                               size_t mask_words)
    : first_(range.begin) {
  Runs runs(trie, range, points);
  covered_ = std::move(runs.covered);
  whole_ = std::move(runs.ends);
  add_others(trie, range, runs.whole, mask_words);
  count_.push_back(0);
  for (size_t n = 1; n < runs.whole.size(); ++n) count_.push_back(count_.back() + runs.whole[n].size());
  for (size_t n = 1; n < count_.size() && count_.back() - count_[n - 1] > kFew; ++n) {
    rows_.push_back(rows_.empty() ? TokenMask(mask_words) : rows_.back());
    for (uint32_t token : runs.whole[n]) set_token(rows_.back(), token);
  }
  for (size_t n = rows_.size() + 1; n < count_.size(); ++n) longer_.push_back(std::move(runs.whole[n]));
  for (const auto& list : runs.rests) {
    rests_.push_back(trie_of(list));
  }
}

void CharacterTable::add_others(const TokenTrie& trie, TokenTrie::Range range,
                                const std::vector<std::vector<uint32_t>>& runs, size_t mask_words) {
  constexpr size_t kPart = 4;
  size_t tokens = 0, in_runs = 0;
  for (size_t i = range.begin; i < range.end; ++i) tokens += trie.tokens(i).size();
  TokenMask whole(mask_words);
  for (const auto& list : runs) {
    in_runs += list.size();
    for (uint32_t token : list) set_token(whole, token);
  }
  if ((tokens - in_runs) * kPart > tokens) return;
  std::vector<std::pair<std::string, int64_t>> texts;
  std::string bytes;
  for (size_t i = range.begin; i < range.end; ++i) {
    bytes.resize(trie.nodes()[i].depth - range.depth - 1);
    bytes += static_cast<char>(trie.nodes()[i].byte);
    for (int64_t token : trie.tokens(i))
      if (!has_token(whole, static_cast<size_t>(token))) texts.emplace_back(bytes, token);
  }
  others_ = trie_of(texts);
}

void CharacterTable::add(size_t characters, TokenMask& mask) const {
  if (const size_t row = std::min(characters, rows_.size()); row > 0)
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= rows_[row - 1][i];
  for (size_t n = rows_.size(); n < std::min(characters, longest()); ++n)
    for (uint32_t token : longer_[n - rows_.size()]) set_token(mask, token);
}

const CharacterTable* CharacterClass::table(size_t begin) const {
  const auto found = std::ranges::find(tables, begin, &std::pair<size_t, CharacterTable>::first);
  return found == tables.end() ? nullptr : &found->second;
}

std::shared_ptr<const CharacterClass> CharacterTables::get(const ConstraintVocabulary& vocabulary,
                                                           const CodePoints& points) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, points, [](const auto& one) { return one->points; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front();
  }
  const TokenTrie& trie = vocabulary.trie;
  const size_t words = static_cast<size_t>(vocabulary.size + 31) / 32;
  auto made = std::make_shared<CharacterClass>(CharacterClass{points, first_bytes(points), {}});
  made->tables.emplace_back(0, CharacterTable(trie, trie.all(), points, words));
  for (size_t i = 0; i < trie.nodes().size();) {
    const TokenTrie::Range below = trie.below(i);
    if (!is_large(trie, below.end - below.begin)) {
      i = below.end;
      continue;
    }
    made->tables.emplace_back(below.begin, CharacterTable(trie, below, points, words));
    ++i;
  }
  kept_.push_front(std::move(made));
  if (kept_.size() > kMaxKept) kept_.pop_back();
  return kept_.front();
}

}  // namespace megatron
