#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace megatron::rl {

// Number i of the shuffled numbers [0, size), without making the others.
int64_t shuffled(int64_t size, uint64_t key, int64_t i);

// A prompt of a run: which entry it is from, and its how manieth.
struct TaskTurn {
  size_t entry = 0;
  int64_t turn = 0;
};

// Prompts [first, first + count), given out so that of any first n an entry has n times its weight (which sum
// to 1) as closely as whole prompts allow. Entries of weight 0 get none.
std::vector<TaskTurn> task_turns(std::span<const double> weights, int64_t first, int64_t count);

}  // namespace megatron::rl
