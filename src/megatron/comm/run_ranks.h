#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/process_group.h"

namespace megatron {

struct RunOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of each wait for other ranks
};

using RankFunction = std::function<void(int rank, ProcessGroup& world)>;

// Runs fn once per rank, each in a thread of its own, and returns when all have. A rank that throws stops the
// others; the error that came first is thrown on.
void run_ranks(int ranks, const RankFunction& fn, const RunOptions& options = {});

// What threads of ranks need of the world that they belong to.
struct RankHost {
  std::function<ProcessGroup(int rank)> group;
  std::function<void(const std::string& reason)> abort;
  std::function<void(int rank)> retire;
};
// The same for ranks first … first + count − 1 of some world.
void run_rank_threads(const RankHost& host, int first, int count, const RankFunction& fn);

}  // namespace megatron
