#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace megatron {

// The processes that make up one world of a run. Those that are left after a fault make up the next.
struct Generation {
  uint32_t number = 0;
  std::vector<int> processes;  // that train, in the order of their ranks
  std::vector<int> reserve;    // that wait until they are needed
  int first_rank = 0;          // of this process; -1: it is in reserve
  int world = 1;               // ranks

  bool trains() const { return first_rank >= 0; }
};

// Chooses the processes that train, in the order of their ranks.
using TrainingChoice = std::function<std::vector<int>(const std::vector<int>& processes)>;

struct RendezvousOptions {
  // How long a process that still answers may take to come.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  // Which of the processes that are left train, in the order of their ranks, the same on all; none: they
  // cannot. The others wait in reserve. Empty: all of them train.
  TrainingChoice training = {};
};

// How processes notice that one of them has stopped without dying.
struct HeartbeatOptions {
  std::chrono::milliseconds interval{0}, timeout{0};  // 0: nobody watches
};

}  // namespace megatron
