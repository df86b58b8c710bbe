#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string bench_train_help();
int bench_train(Invocation& invocation);  // args: the case and its options

}  // namespace megatron
