#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string bench_help();
std::string bench_part_help(std::string_view part);
int run_bench(Invocation& invocation);

}  // namespace megatron
