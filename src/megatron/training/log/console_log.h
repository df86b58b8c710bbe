#pragma once

#include <cstdio>
#include <memory>

#include "megatron/base/log.h"
#include "megatron/training/run/callback.h"

namespace megatron {

// What a person sees of a run: on `out` Megatron's line of each --log-interval, its memory lines, timers and
// evaluations; saves and a progress bar on the log.
std::shared_ptr<Callback> console_log(const Log& log, std::FILE* out);

// One JSON object per iteration in the file of --metrics. A full disk leaves rows out and says so.
std::shared_ptr<Callback> metrics_log(const Log& log, const std::string& path);

}  // namespace megatron
