#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string data_help();
int run_data(Invocation& invocation);

}  // namespace megatron
