#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace megatron {

// From this many consumed samples on, the global batch has this size.
struct BatchStep {
  int64_t samples;
  int64_t batch_size;
};

// "0:512 10B:1024": thresholds in tokens with K, M, B, T for thousands to trillions, turned into samples of
// `seq_length` tokens, ascending. An Error says what cannot be read.
std::vector<BatchStep> parse_batch_schedule(std::string_view text, int64_t seq_length);

}  // namespace megatron
