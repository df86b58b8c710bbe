#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string quickstart_help();
int quickstart_command(Invocation& invocation);

}  // namespace megatron
