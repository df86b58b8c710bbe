#pragma once

#include <string>
#include <string_view>

#include "megatron/cli/command.h"

// The parts of `megatron autotune`.
namespace megatron {

std::string autotune_search_help();
int run_autotune_search(Invocation& invocation);

std::string autotune_simulate_help();
int run_autotune_simulate(Invocation& invocation);

std::string autotune_validate_help();
int run_autotune_validate(Invocation& invocation);

std::string autotune_profile_ops_help();
int run_autotune_profile_ops(Invocation& invocation);

std::string autotune_profile_comm_help();
int run_autotune_profile_comm(Invocation& invocation);

}  // namespace megatron
