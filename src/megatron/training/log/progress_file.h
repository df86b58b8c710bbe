#pragma once

#include <memory>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

namespace megatron {

// Megatron-LM's progress.txt in the folder of --save, which all starts of a run add to: when each began, and
// at each checkpoint what was done by then, how fast this job was, and how fast all were that had as many
// ranks. A file that cannot be written is told of once.
std::shared_ptr<Callback> progress_file(const Log& log);

}  // namespace megatron
