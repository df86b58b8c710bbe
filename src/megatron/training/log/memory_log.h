#pragma once

#include <memory>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

namespace megatron {

// Records what memory the profiled steps hold, by kind, on all ranks or on --profile-ranks, and writes it as
// a page: curves over the step, the ranges of work that added most, and the largest tensors that stay.
std::shared_ptr<Callback> memory_log(const Log& log);

}  // namespace megatron
