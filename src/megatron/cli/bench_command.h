#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string bench_help();
int run_bench(Invocation& invocation);

}  // namespace megatron
