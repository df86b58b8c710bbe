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
  uint64_t sample = 0;       // of --num-samples, added to the seed: texts that begin alike are drawn apart
};

// The prompts that --prompt, --prompt-ids, --prompts or --prompt-file give, one of which must be there, or
// the
// --num-samples empty ones of texts that begin with nothing but the token that ends a document. A line of the
// file is a JSON string, an object with `text` or `prompt` or `ids`, an array of tokens, or plain
// text; at most --prompt-file-num-truncate lines are read.
std::vector<Prompt> given_prompts(const CommandLine& line);

}  // namespace megatron
