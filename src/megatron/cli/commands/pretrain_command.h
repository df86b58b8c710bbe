#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string pretrain_help();
int run_pretrain(Invocation& invocation);
std::string finetune_help();
int run_finetune(Invocation& invocation);

}  // namespace megatron
