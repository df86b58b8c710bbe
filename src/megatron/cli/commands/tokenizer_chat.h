#pragma once

#include <iosfwd>

#include "megatron/cli/command.h"

namespace megatron {

// `megatron tokenizer chat`: renders a conversation a line of `in`. The arguments are those behind "chat".
std::string tokenizer_chat_help();
int run_tokenizer_chat(Invocation& invocation, std::istream& in);

}  // namespace megatron
