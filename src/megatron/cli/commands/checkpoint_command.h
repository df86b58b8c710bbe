#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string checkpoint_help();
int run_checkpoint(Invocation& invocation);

}  // namespace megatron
