#include "megatron/inference/constraint/local_states.h"

#include <algorithm>
#include <bitset>

namespace megatron {

LocalStates::LocalStates(const Grammar& grammar, const Classes& classes)
    : grammar_(grammar), classes_(classes), bottom_(push_frame(-1, nullptr)) {
  std::bitset<257> begins;
  for (size_t i = 0; i < grammar.size(); ++i)
    for (const Grammar::Edge& edge : grammar.node(static_cast<int>(i)).edges)
      begins.set(edge.first).set(edge.last + size_t{1});
  for (size_t byte = 1; byte < 256; ++byte)
    column_[byte] = static_cast<uint8_t>(column_[byte - 1] + (begins[byte] ? 1 : 0));
  columns_ = column_[255] + size_t{1};
}

int LocalStates::enter(const std::vector<int>& nodes, bool is_called) {
  GrammarPaths paths;
  paths.reserve(nodes.size());
  for (int node : nodes) paths.push_back({node, is_called ? bottom_ : nullptr});
  return add(std::move(paths), is_called);
}

int LocalStates::add(GrammarPaths paths, bool is_called) {
  const uint64_t hash = hash_of(paths);
  for (auto [at, end] = found_.equal_range(hash); at != end; ++at) {
    const State& state = states_[static_cast<size_t>(at->second)];
    if (state.is_called == is_called && state.paths == paths) return at->second;
  }
  const bool left =
      std::ranges::any_of(paths, [](const GrammarPath& path) { return path.node == GrammarPath::kLeft; });
  const bool stays = paths.size() > (left ? 1 : 0);
  const int own = static_cast<int>(states_.size());
  states_.push_back({std::move(paths), is_called, left && is_called, stays});
  next_.resize(next_.size() + columns_, kUnknown);
  behind_.resize(behind_.size() + classes_.size(), {kUnknown, false});
  found_.emplace(hash, own);
  return own;
}

int LocalStates::find_next(int state, uint8_t byte) {
  const State& from = states_[static_cast<size_t>(state)];
  const bool is_called = from.is_called;
  GrammarPaths paths = read_byte(grammar_, from.paths, byte);
  const int target = paths.empty() ? kDead : add(std::move(paths), is_called);
  return next_[static_cast<size_t>(state) * columns_ + column_[byte]] = target;
}

LocalStates::Behind LocalStates::find_behind(int state, size_t character_class) {
  const Behind found = make_behind(state, character_class);
  return behind_[static_cast<size_t>(state) * classes_.size() + character_class] = found;
}

LocalStates::Behind LocalStates::make_behind(int state, size_t character_class) {
  const State& from = states_[static_cast<size_t>(state)];
  const bool is_called = from.is_called;
  GrammarPaths targets;
  bool is_exact = true, begins_alike = false;
  for (const GrammarPath& path : from.paths) {
    if (path.node == GrammarPath::kLeft) continue;
    const Grammar::Node& node = grammar_.node(path.node);
    const Relation found = relation(node, character_class);
    if (found == Relation::some) is_exact = false;
    if (found == Relation::begin) begins_alike = true;
    if (found == Relation::all) targets.push_back({node.target, path.stack});
  }
  if (targets.empty()) return {kDead, is_exact && !begins_alike};
  const int target = add(settle(grammar_, std::move(targets)), is_called);
  // Who reads on where a reading has left may read the same characters otherwise.
  return {target, is_exact && !leaves(target)};
}

std::pair<int, int> LocalStates::split(int state, size_t character_class) {
  const State& from = states_[static_cast<size_t>(state)];
  const bool is_called = from.is_called;
  GrammarPaths without, only;
  for (const GrammarPath& path : from.paths) {
    if (path.node == GrammarPath::kLeft) continue;
    const bool some = relation(grammar_.node(path.node), character_class) == Relation::some;
    (some ? only : without).push_back(path);
  }
  const int first = without.empty() ? kDead : add(std::move(without), is_called);
  return {first, only.empty() ? kDead : add(std::move(only), is_called)};
}

LocalStates::Relation LocalStates::relation(const Grammar::Node& node, size_t character_class) {
  const CharacterClass& own = *classes_[character_class];
  if (node.characters < 0) {
    for (const Grammar::Edge& edge : node.edges)
      for (size_t byte = edge.first; byte <= edge.last; ++byte)
        if (own.first_bytes[byte]) return Relation::some;
    return Relation::none;
  }
  const size_t index = static_cast<size_t>(node.characters) * classes_.size() + character_class;
  if (relations_.size() <= index) relations_.resize(index + 1);
  Relation& known = relations_[index];
  if (known == Relation::unknown) {
    const CodePoints& read = grammar_.characters(node.characters);
    known = contains_all(read, own.points)                 ? Relation::all
            : overlap(read, own.points)                    ? Relation::some
            : (first_bytes(read) & own.first_bytes).none() ? Relation::none
                                                           : Relation::begin;
  }
  return known;
}

}  // namespace megatron
