#pragma once

#include <functional>
#include <string>

#include "megatron/base/log.h"

namespace megatron {

// Names in the log the first few rows that have nothing to learn; they count in a batch and add nothing to
// its loss. Safe to call from several threads.
std::function<void(const std::string& origin)> unlearned_rows(const Log& log, int64_t seq_length);

}  // namespace megatron
