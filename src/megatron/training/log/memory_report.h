#pragma once

#include <string>

#include "megatron/training/run/callback.h"

namespace megatron {

// Megatron-LM's memory lines, one for each rank of the first data-parallel replica, in MiB. All ranks of the
// world call it.
std::string memory_report(RunView& view);

}  // namespace megatron
