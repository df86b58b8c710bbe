#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megatron {

struct TokenLogit {
  float logit;
  int64_t token;
};

// The `count` likeliest tokens and all that are as likely as the last of them, likeliest first, the lower
// number among equals. Tokens with a logit below `floor` or of minus infinity never count.
std::vector<TokenLogit> select_likeliest(std::span<const float> logits, int64_t count, float floor);

}  // namespace megatron
