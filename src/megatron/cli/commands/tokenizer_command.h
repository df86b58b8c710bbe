#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string tokenizer_help();
int run_tokenizer(Invocation& invocation);

}  // namespace megatron
