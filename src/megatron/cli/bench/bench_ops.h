#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string bench_ops_help();
int run_bench_ops(Invocation& invocation);

}  // namespace megatron
