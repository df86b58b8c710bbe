#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

// `megatron autotune predict|rank|search|explain`: what a plan will cost, and which plan is fastest.
std::string autotune_help();
std::string autotune_part_help(std::string_view part);
int run_autotune(Invocation& invocation);

}  // namespace megatron
