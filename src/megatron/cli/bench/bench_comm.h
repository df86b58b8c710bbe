#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string bench_comm_help();
int bench_comm(Invocation& invocation);

}  // namespace megatron
