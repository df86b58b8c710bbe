#pragma once

#include <cstdint>
#include <string>

#include "megatron/training/log/timers.h"

namespace megatron {

// One line on the `count` fastest and slowest ranks, by the time of their passes and of reading their data;
// "" where no pass was timed. Ranks of different pipeline stages have different work.
std::string straggler_report(const TimerTable& table, int64_t count);

}  // namespace megatron
