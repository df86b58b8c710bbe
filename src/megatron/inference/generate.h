#pragma once

#include <span>
#include <vector>

#include "megatron/models/gpt.h"

namespace megatron {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 0;  // 0: the likeliest token each time
  int64_t context = 0;     // how many of the last tokens the model sees; 0: its sequence length
  uint64_t seed = 1234;
};

// Continues a prompt of one sequence with a whole model on one rank; returns the new tokens.
std::vector<int64_t> generate(RankContext& ctx, GptModel& model, std::span<const int64_t> prompt,
                              const GenerateOptions& options);

// The index drawn from the probabilities softmax(logits / temperature) by a number in [0, 1); temperature 0:
// the largest.
int64_t sample_token(std::span<const double> logits, double temperature, double uniform);

}  // namespace megatron
