#pragma once

#include <span>

#include "megatron/tokenizers/regex/regex_program.h"

namespace megatron::tokenizers {

// Whether the end of a body is reached without a character.
bool can_be_empty(std::span<const RegexStep> body);

// Collects the characters with which a match can begin, so that a search can skip the others.
void find_first(RegexProgram& program);

}  // namespace megatron::tokenizers
