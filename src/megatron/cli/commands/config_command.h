#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

std::string config_help();
int run_config(Invocation& invocation);  // megatron config show

}  // namespace megatron
