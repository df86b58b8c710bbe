#pragma once

#include <functional>

#include "megatron/inference/constraint/local_states.h"
#include "megatron/inference/constraint/token_mask.h"
#include "megatron/inference/constraint/token_trie.h"

namespace megatron {

// Adds the tokens that a state reads to a mask. Below nodes with many tokens it takes the runs of one class
// of characters from that class's table where the state behind a run is always the same, and walks what is
// left.
class TokenWalk {
 public:
  // Called at nodes of a tree where a reading has left and tokens go on.
  using Leave = std::function<void(const TokenTrie& trie, size_t node)>;

  TokenWalk(LocalStates& states, const LocalStates::Classes& classes, const ConstraintVocabulary& vocabulary,
            TokenMask& mask, const Leave& leave)
      : states_(states), classes_(classes), vocabulary_(vocabulary), mask_(mask), leave_(leave) {}

  // The tokens below a node of the vocabulary's tree or of a tree of rests, read from `state` on.
  void read(const TokenTrie& trie, TokenTrie::Range range, int state);

 private:
  // How a class serves a state.
  struct Plan {
    const CharacterTable* table = nullptr;
    std::vector<int> states;         // behind 0, 1, … characters, whichever they are
    bool is_open = false;            // one more may follow, and the state depends on it
    bool is_core = false;            // they may follow without end, though the states depend on them
    int apart = LocalStates::kDead;  // readings of the first state that are read by themselves
    size_t saved = 0;                // tokens that need no walk
  };

  bool read_runs(TokenTrie::Range range, int state);
  Plan plan(size_t character_class, const CharacterTable& table, int state);
  bool is_core(size_t character_class, const CharacterTable& table, int state);
  void read_each(const TokenTrie& trie, TokenTrie::Range range, int state, const CharacterTable* passed_by);
  void read_behind(const CharacterTable& table, TokenTrie::Range range, size_t characters, int state);

  LocalStates& states_;
  const LocalStates::Classes& classes_;
  const ConstraintVocabulary& vocabulary_;
  TokenMask& mask_;
  const Leave& leave_;
};

}  // namespace megatron
