#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/config/schema/inference_config.h"
#include "megatron/kernels/sample.h"

namespace megatron {

// How the next token is chosen. Logits pass these in order: constraint mask, logit bias, penalties, division
// by the temperature, min-p, top-k, top-p.
struct Sampling {
  double temperature = 0;  // 0: the likeliest token each time
  int64_t top_k = 0;       // keeps the k likeliest, and those as likely as the last of them; 0: all
  double top_p = 1;        // likewise, that together have this probability; 0 and 1: all
  double min_p = 0;        // keeps what has at least this share of the likeliest token's probability
  uint64_t seed = 1234;
  // Above 1: tokens of prompt and answer become less likely (positive logits are divided by it, negative ones
  // multiplied), as Hugging Face's generate does.
  double repetition_penalty = 1;
  double presence_penalty = 0;                        // taken off the logit of each token of the answer
  double frequency_penalty = 0;                       // likewise, times the number of its uses
  std::vector<std::pair<int64_t, float>> logit_bias;  // added to the logits of tokens
  LogprobsMode logprobs = LogprobsMode::raw_logprobs;
};

// A row of SampleArgs::settings.
using DeviceDraw = std::array<double, kSampleSettings>;

// A token with its log-probability, as Sampling::logprobs says.
struct TokenChoice {
  int64_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int64_t, float>> top;  // likeliest first
};

// What one choice has to keep to beyond the settings of its request.
struct ChoiceLimits {
  std::span<const uint32_t> allowed;        // a bit a token, as ConstraintState gives them; empty: all
  std::span<const int64_t> forbidden = {};  // end tokens, before the least number of tokens
};

// Chooses the tokens of one sequence. Its result depends on the logits, the settings and the tokens so far,
// not on what else is sampled.
class Sampler {
 public:
  Sampler(Sampling sampling, std::span<const int64_t> prompt);

  // The next token, from logits that are overwritten. top_logprobs: -1 none, 0 the token's own, N the N
  // likeliest too. An Error where no token is left, or a logit that decides is NaN.
  TokenChoice choose(std::span<float> logits, const ChoiceLimits& limits = {}, int top_logprobs = -1) const;
  // Tells it which token was taken.
  void push(int64_t token);

  const Sampling& sampling() const { return sampling_; }
  // By what a device draws the token that choose() without limits would take; none where logits are changed
  // first.
  std::optional<DeviceDraw> device_draw() const;
  // The number in [0, 1) that decides the next draw, by the seed and the number of tokens so far.
  double uniform() const;

 private:
  void modify(std::span<float> logits, const ChoiceLimits& limits) const;

  struct Uses {
    bool in_prompt = false;
    int64_t answers = 0;
  };
  Sampling sampling_;
  std::unordered_map<int64_t, Uses> uses_;  // only where a penalty reads them
  uint64_t number_ = 0;                     // tokens of the answer
};

// The token that a number in [0, 1) draws from softmax(logits / temperature), cut by min-p, top-k and top-p.
int64_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform);

// log of the sum of exp(logits), to fp32's precision.
double log_sum_exp(std::span<const float> logits);

// The log-probability of `token` and of the `top` likeliest (-1: an empty choice with the id alone).
TokenChoice log_probabilities(std::span<const float> logits, int64_t token, int top);

// The same as `sampling` asks: of the logits themselves, or of what is drawn from, where a token that cannot
// be drawn has minus infinity and is not among the likeliest.
TokenChoice log_probabilities(std::span<const float> logits, const Sampling& sampling, int64_t token,
                              int top);

}  // namespace megatron
