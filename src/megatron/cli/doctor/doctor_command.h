#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string doctor_help();
int run_doctor(Invocation& invocation);

}  // namespace megatron
