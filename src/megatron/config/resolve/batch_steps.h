#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// From this sample on, batches have so many sequences.
struct BatchSize {
  int64_t from, size;
};

// "0:64", "10M:128", "1B:256", in as many words as one likes: after so many tokens, the sequences of a batch.
// A ConfigError says what is wrong.
std::vector<BatchSize> parse_batch_steps(const std::vector<std::string>& words, int64_t seq_length);

// All sizes of a run, ascending in samples: those of steps, of a ramp, or one. A ConfigError says what is
// wrong.
struct BatchGrowth {
  const std::vector<std::string>& steps;  // train.step_batch_size_schedule
  const std::vector<int64_t>& ramp;       // train.rampup_batch_size
  int64_t global_batch_size, seq_length;
};
std::vector<BatchSize> batch_sizes(const BatchGrowth& growth);

}  // namespace megatron
