#pragma once

#include <memory>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

namespace megatron {

// Records the ranges of the profiled steps on all ranks, or on --profile-ranks, and writes them as trace.json
// for Perfetto: into --tensorboard-dir, else --save, else the current folder. On a GPU, compute and pipeline
// are its own times, the rest are the host's.
std::shared_ptr<Callback> trace_log(const Log& log);

}  // namespace megatron
