#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string compare_help();
int run_compare(Invocation& invocation);

}  // namespace megatron
