#pragma once

#include "megatron/cli/command.h"

namespace megatron {

std::string tokenizer_help();
std::string tokenizer_part_help(std::string_view part);  // of `tokenizer chat`
int run_tokenizer(Invocation& invocation);

}  // namespace megatron
