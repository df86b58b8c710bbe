#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace megatron {

struct TrainConfig;

// From this sample on, batches have so many sequences.
struct BatchSize {
  int64_t from, size;
};

// "0:64 10M:128 1B:256": after so many tokens, the sequences of a batch. A ConfigError says what is wrong.
std::vector<BatchSize> parse_batch_steps(std::string_view text, int64_t seq_length);

// All sizes of a run, ascending in samples: --step-batch-size-schedule, --rampup-batch-size or one size. A
// ConfigError says what is wrong.
std::vector<BatchSize> batch_sizes(const TrainConfig& train, int64_t seq_length);

}  // namespace megatron
