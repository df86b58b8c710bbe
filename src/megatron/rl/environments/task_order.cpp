#include "megatron/rl/environments/task_order.h"

#include <bit>

#include "megatron/base/error.h"
#include "megatron/tensor/philox.h"

namespace megatron::rl {

int64_t shuffled(int64_t size, uint64_t key, int64_t i) {
  require(i >= 0 && i < size, "shuffled: number {} of {}", i, size);
  if (size < 2) return i;
  // A Feistel network permutes [0, 4^half); numbers beyond `size` are sent on until they fall below.
  const int half = (static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1))) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  auto number = static_cast<uint64_t>(i);
  do {
    uint64_t left = number >> half, right = number & mask;
    for (uint64_t round = 0; round < 8; ++round) {
      const Philox random = Philox::at({key, round}, right);
      const uint64_t mixed = left ^ (((uint64_t{random.word[0]} << 32) | random.word[1]) & mask);
      left = right;
      right = mixed;
    }
    number = (left << half) | right;
  } while (number >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(number);
}

std::vector<TaskTurn> task_turns(std::span<const double> weights, int64_t first, int64_t count) {
  require(first >= 0 && count >= 0, "training tasks: prompts {} to {}", first, first + count);
  std::vector<int64_t> given(weights.size());
  std::vector<TaskTurn> turns;
  turns.reserve(static_cast<size_t>(count));
  for (int64_t prompt = 0; prompt < first + count; ++prompt) {
    size_t most = weights.size();
    double most_owed = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] <= 0) continue;
      const double owed = weights[i] * static_cast<double>(prompt + 1) - static_cast<double>(given[i]);
      if (most == weights.size() || owed > most_owed) {
        most = i;
        most_owed = owed;
      }
    }
    require(most < weights.size(), "training tasks: no entry has a weight");
    if (prompt >= first) turns.push_back({most, given[most]});
    ++given[most];
  }
  return turns;
}

}  // namespace megatron::rl
