#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

// `megatron groups`: every process group of a parallel layout as lists of ranks.
std::string groups_help();
int run_groups(Invocation& invocation);

}  // namespace megatron
