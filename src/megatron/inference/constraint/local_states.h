#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/inference/constraint/character_tables.h"
#include "megatron/inference/constraint/grammar_path.h"

// The grammar as an automaton, made where it is asked for. A state is a set of readings that stand in one
// rule or in calls that began within it; what waits below the rule is not part of the state, so that texts
// that come to a rule by different ways share its states. A reading that returns from the rule leaves.

namespace megatron {

class LocalStates {
 public:
  static constexpr int kDead = -1;  // nothing is read

  using Classes = std::vector<std::shared_ptr<const CharacterClass>>;

  LocalStates(const Grammar& grammar, const Classes& classes);

  // The state of readings at nodes of one rule, in order. `is_called`: somebody reads on where they leave;
  // behind the outermost rule a text ends.
  int enter(const std::vector<int>& nodes, bool is_called);
  int next(int state, uint8_t byte) {
    const int target = next_[static_cast<size_t>(state) * columns_ + column_[byte]];
    return target != kUnknown ? target : find_next(state, byte);
  }
  // The state behind any character of a class (an index of the classes above). kDead: no character begins as
  // those of the class do. Where `is_exact` does not hold, other readings may stand there besides, or stand
  // there where there is no state.
  struct Behind {
    int state;
    bool is_exact;
  };
  Behind behind(int state, size_t character_class) {
    const Behind found = behind_[static_cast<size_t>(state) * classes_.size() + character_class];
    return found.state != kUnknown ? found : find_behind(state, character_class);
  }
  // A state as two: without, and with nothing but the readings that tell characters of a class apart. kDead:
  // there are none.
  std::pair<int, int> split(int state, size_t character_class);
  // Whether a reading has left for one who reads on, and whether one has not left.
  bool leaves(int state) const { return states_[static_cast<size_t>(state)].leaves; }
  bool stays(int state) const { return states_[static_cast<size_t>(state)].stays; }
  size_t bytes() const {
    return states_.size() * sizeof(State) + next_.size() * sizeof(int) + behind_.size() * sizeof(Behind);
  }

 private:
  static constexpr int kUnknown = -2;
  struct State {
    GrammarPaths paths;
    bool is_called, leaves, stays;
  };

  int add(GrammarPaths paths, bool is_called);
  int find_next(int state, uint8_t byte);
  Behind find_behind(int state, size_t character_class);
  Behind make_behind(int state, size_t character_class);
  // How the characters that a node reads lie to a class.
  enum class Relation : uint8_t { unknown, all, none, begin, some };
  Relation relation(const Grammar::Node& node, size_t character_class);

  const Grammar& grammar_;
  const Classes& classes_;
  GrammarStack bottom_;
  std::array<uint8_t, 256> column_{};  // bytes that no edge tells apart share one
  size_t columns_ = 0;
  std::vector<State> states_;
  std::vector<int> next_;            // by state and column
  std::vector<Behind> behind_;       // by state and class
  std::vector<Relation> relations_;  // by class of the grammar and class
  std::unordered_multimap<uint64_t, int> found_;
};

}  // namespace megatron
