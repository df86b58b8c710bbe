#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string generate_help();
int run_generate(Invocation& invocation);

}  // namespace megatron
