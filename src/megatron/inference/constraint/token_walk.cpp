#include "megatron/inference/constraint/token_walk.h"

#include <algorithm>

namespace megatron {

void TokenWalk::read(const TokenTrie& trie, TokenTrie::Range range, int state) {
  if (&trie == &vocabulary_.trie &&
      (range.begin == 0 || CharacterTables::is_large(trie, range.end - range.begin)) &&
      read_runs(range, state))
    return;
  read_each(trie, range, state, nullptr);
}

// Byte by byte, in the order of the tree. Tokens that `passed_by` covers are left out.
void TokenWalk::read_each(const TokenTrie& trie, TokenTrie::Range range, int state,
                          const CharacterTable* passed_by) {
  const bool is_vocabulary = &trie == &vocabulary_.trie;
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  std::vector<int> behind = {state};  // by depth
  for (size_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& node = nodes[i];
    const size_t depth = node.depth - range.depth;
    if (passed_by && passed_by->covers(i)) {
      i = node.end;
      continue;
    }
    const int target = states_.next(behind[depth - 1], node.byte);
    if (target == LocalStates::kDead) {
      i = node.end;
      continue;
    }
    set_tokens(mask_, trie.tokens(i));
    const bool goes_on = node.end > i + 1;
    if (goes_on && states_.leaves(target)) leave_(trie, i);
    if (!goes_on || !states_.stays(target)) {
      i = node.end;
    } else if (is_vocabulary && CharacterTables::is_large(trie, node.end - i - 1)) {
      read(trie, trie.below(i), target);
      i = node.end;
    } else {
      if (behind.size() <= depth) behind.resize(depth + 1);
      behind[depth] = target;
      ++i;
    }
  }
}

bool TokenWalk::read_runs(TokenTrie::Range range, int state) {
  Plan best;
  for (size_t i = 0; i < classes_.size(); ++i)
    if (const CharacterTable* table = classes_[i]->table(range.begin))
      if (Plan one = plan(i, *table, state); one.saved > best.saved) best = std::move(one);
  if (!best.table) return false;
  const CharacterTable& table = *best.table;
  if (best.is_core) {
    table.add(table.longest(), mask_);
    read_each(*table.others(), table.others()->all(), state, nullptr);
    return true;
  }
  const size_t most = best.states.size() - 1;
  table.add(most, mask_);
  read_each(vocabulary_.trie, range, best.states[0], &table);
  const std::vector<TokenTrie>& rests = table.rests();
  for (size_t n = 1; n < rests.size() && n <= most && !(best.is_open && n == most); ++n)
    read_each(rests[n], rests[n].all(), best.states[n], nullptr);
  if (best.is_open) read_behind(table, range, most, best.states[most]);
  if (best.apart != LocalStates::kDead) read(vocabulary_.trie, range, best.apart);
  return true;
}

TokenWalk::Plan TokenWalk::plan(size_t character_class, const CharacterTable& table, int state) {
  Plan plan{.table = &table, .states = {state}};
  const size_t longest = std::max(table.longest(), table.rests().size());
  while (plan.states.size() <= longest) {
    const LocalStates::Behind behind = states_.behind(plan.states.back(), character_class);
    if (behind.is_exact && behind.state == LocalStates::kDead) break;
    if (!behind.is_exact) {
      if (plan.states.size() == 1 && behind.state != LocalStates::kDead && plan.apart == LocalStates::kDead) {
        const auto [first, apart] = states_.split(state, character_class);
        if (apart != LocalStates::kDead) {
          plan.states = {first};
          plan.apart = apart;
          continue;
        }
      }
      plan.is_open = true;
      break;
    }
    plan.states.push_back(behind.state);
  }
  const size_t most = std::min(plan.states.size() - 1, table.longest());
  plan.saved = table.count(most);
  if (plan.is_open) plan.saved -= std::min(plan.saved, table.count(table.longest()) - plan.saved);
  if (plan.is_open && table.count(table.longest()) > plan.saved && is_core(character_class, table, state)) {
    plan.is_core = true;
    plan.saved = table.count(table.longest());
  }
  return plan;
}

// Whether any run of the class is read from `state` on.
bool TokenWalk::is_core(size_t character_class, const CharacterTable& table, int state) {
  if (!table.others()) return false;
  for (size_t n = 0; n < table.longest(); ++n) {
    const int behind = states_.behind(state, character_class).state;
    if (behind == LocalStates::kDead) return false;
    if (behind == state) break;
    state = behind;
  }
  return true;
}

// Tokens that go on in whatever way behind a run of so many characters: where it ends, they are read from
// `state` on.
void TokenWalk::read_behind(const CharacterTable& table, TokenTrie::Range range, size_t characters,
                            int state) {
  const TokenTrie& trie = vocabulary_.trie;
  std::vector<size_t> read = {0};  // characters, by depth
  for (size_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& node = trie.nodes()[i];
    const size_t depth = node.depth - range.depth;
    const size_t count = read[depth - 1] + (table.ends_character(i) ? 1 : 0);
    if (table.ends_character(i) && count == characters) {
      this->read(trie, trie.below(i), state);
      i = node.end;
    } else if (table.ends_character(i) || node.byte >= 0x80) {
      read.resize(depth);
      read.push_back(count);
      ++i;
    } else {
      i = node.end;
    }
  }
}

}  // namespace megatron
