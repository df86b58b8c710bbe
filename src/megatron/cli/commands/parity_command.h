#pragma once

#include <string>

#include "megatron/cli/command.h"

namespace megatron {

// `megatron parity`: whether two layouts of a configuration train alike, tensor by tensor.
std::string parity_help();
int run_parity(Invocation& invocation);

}  // namespace megatron
