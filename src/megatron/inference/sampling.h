#pragma once

#include <cstdint>
#include <span>

namespace megatron {

struct Sampling {
  double temperature = 0;  // 0: the likeliest token each time
  int64_t top_k = 0;       // of the k likeliest alone; 0: of all
  double top_p = 1;        // of the likeliest that together have this probability
  uint64_t seed = 1234;
  // Above 1: tokens that the text has already become less likely (positive logits are divided by it, negative
  // ones multiplied), as Hugging Face's generate does.
  double repetition_penalty = 1;
};

void penalise_repetition(std::span<double> logits, std::span<const int64_t> text, double penalty);

// The token that a number in [0, 1) draws from softmax(logits / temperature), cut as the settings say.
int64_t sample_token(std::span<const double> logits, const Sampling& sampling, double uniform);

}  // namespace megatron
