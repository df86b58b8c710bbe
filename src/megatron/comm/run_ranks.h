#pragma once

#include <chrono>
#include <functional>

#include "megatron/comm/process_group.h"

namespace megatron {

struct RunOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of each wait for other ranks
};

// Runs fn once per rank, each in a thread of its own, and returns when all have. A rank that throws stops the
// others; the error that came first is thrown on.
void run_ranks(int ranks, const std::function<void(int rank, ProcessGroup& world)>& fn,
               const RunOptions& options = {});

}  // namespace megatron
