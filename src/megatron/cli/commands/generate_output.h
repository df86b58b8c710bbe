#pragma once

#include <optional>

#include "megatron/base/json.h"
#include "megatron/cli/commands/generate_prompts.h"
#include "megatron/inference/request.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// What became of a prompt.
struct Generated {
  std::vector<TokenChoice> tokens, prompt;
  FinishReason finish = FinishReason::length;
  bool logprobs = false, prompt_logprobs = false;  // whether they were asked for
  std::vector<int32_t>
      experts;  // of the tokens that were read, `expert_layers` times so many; where recorded
  int64_t expert_layers = 0, expert_topk = 0;

  std::vector<int64_t> ids() const;
};

// {"ids", "text", "finish_reason", and what was asked for of "logprobs", "top_logprobs", "prompt_logprobs",
// "prompt_top_logprobs", "routing_indices"}; the text where there is a tokenizer.
Json generated_json(const Generated& generated, const std::optional<Tokenizer>& tokenizer);

// The same under the names that Megatron-LM's inference scripts write to --output-path: an object of all
// requests by their number.
Json output_file(const std::vector<Prompt>& prompts, const std::vector<Generated>& all,
                 const std::optional<Tokenizer>& tokenizer);

}  // namespace megatron
