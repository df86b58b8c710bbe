#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

// `megatron plan`: what a run needs and how its pipeline goes, before anything is launched.
std::string plan_help();
int run_plan(Invocation& invocation);

}  // namespace megatron
