#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string logits_help();
int run_logits(Invocation& invocation);

}  // namespace megatron
