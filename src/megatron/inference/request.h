#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/inference/constraint.h"
#include "megatron/inference/sampling.h"

namespace megatron {

// One text to be continued. Strings and several answers to a prompt are the caller's: it watches the text for
// stop strings, and submits a request per answer, which share the blocks of their prompt.
struct Request {
  std::vector<int64_t> prompt;
  Sampling sampling;
  int64_t max_tokens = 16;
  int64_t min_tokens = 0;                            // no end token is chosen before
  std::vector<int64_t> end_tokens;                   // any of them is the last
  std::vector<std::vector<int64_t>> stop_sequences;  // an answer that ends in one of them is complete
  int top_logprobs = -1;     // of each new token: -1 none, 0 its own, N the N likeliest too
  int prompt_logprobs = -1;  // the same of each token of the prompt but the first
  int priority = 0;          // lower goes first
  std::shared_ptr<const Constraint> constraint;
};

enum class FinishReason { end_token, length, cancelled, failed };

// What is new about a request since its last update.
struct RequestUpdate {
  std::vector<TokenChoice> prompt;  // once, where asked for
  std::vector<TokenChoice> tokens;
  int64_t cached_tokens = 0;           // of the prompt, whose keys were there already
  std::optional<FinishReason> finish;  // the last update has one
  int64_t stop_tokens = 0;             // with it: the last tokens that are a stop sequence
  // With the last update, where recorded: experts of every token that was read, [tokens, layers with experts,
  // k].
  std::vector<int32_t> experts;
};

using RequestListener = std::function<void(const RequestUpdate&)>;

}  // namespace megatron
