#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string convert_help();
int run_convert(Invocation& invocation);

}  // namespace megatron
