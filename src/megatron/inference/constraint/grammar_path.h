#pragma once

#include <memory>
#include <span>
#include <vector>

#include "megatron/inference/constraint/grammar.h"

namespace megatron {

// A call that has not returned. Frames are shared between paths and never change.
struct GrammarFrame {
  int target;  // where the path goes on; -1: it leaves what is looked at
  std::shared_ptr<const GrammarFrame> below;
  int depth;
  uint64_t hash;
};
using GrammarStack = std::shared_ptr<const GrammarFrame>;

GrammarStack push_frame(int target, GrammarStack below);
bool same_stack(const GrammarFrame* a, const GrammarFrame* b);

// Where one reading of a text stands. A path whose node is kLeft has left the lowest frame.
struct GrammarPath {
  static constexpr int kLeft = -1;
  int node;
  GrammarStack stack;

  friend bool operator==(const GrammarPath& a, const GrammarPath& b);
};

// All readings of a text at once: in order, without repetitions, each at a node that reads a byte or at
// kLeft.
using GrammarPaths = std::vector<GrammarPath>;

uint64_t hash_of(const GrammarPaths& paths);

// The readings at the begin of a text.
GrammarPaths first_paths(const Grammar& grammar);
// Those that stand at `node` with `stack`, which may not read a byte there yet.
GrammarPaths paths_at(const Grammar& grammar, int node, const GrammarStack& stack);
// Those that follow from `paths` without a byte, and read one.
GrammarPaths settle(const Grammar& grammar, GrammarPaths paths);
// Those that can read `byte`, behind it; none where it is not allowed.
GrammarPaths read_byte(const Grammar& grammar, const GrammarPaths& paths, uint8_t byte);

}  // namespace megatron
