#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

std::string explain_help();
int run_explain(Invocation& invocation);  // megatron explain KEY...

}  // namespace megatron
