#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/config/sources/command_line.h"

namespace megatron {

// What a model goes on from: a text, or tokens.
struct Prompt {
  std::string text;          // as given; empty where tokens were
  std::vector<int64_t> ids;  // of the text, once it is encoded
};

// The prompts that --prompt, --prompt-ids, --prompts or --prompt-file give, one of which must be there. A
// line of the file is a JSON string, an object with `text` or `prompt` or `ids`, an array of tokens, or plain
// text; at most --prompt-file-num-truncate lines are read.
std::vector<Prompt> given_prompts(const CommandLine& line);

}  // namespace megatron
