#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string preprocess_help();
int run_preprocess(Invocation& invocation);

}  // namespace megatron
