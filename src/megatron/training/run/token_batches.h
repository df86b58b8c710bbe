#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/config/config.h"

namespace megatron {

// Where training gets its tokens. A row of a batch has length + 1 of them: each is input and, shifted by one,
// label.
struct TokenBatches {
  int64_t length = 0;
  int64_t iterations = -1;  // that there are; -1: as many as asked for
  // The rows [first, first + count) of the global batch of an iteration (counted from 0), of which
  // `consumed` rows came before.
  using Take =
      std::function<std::vector<int64_t>(int64_t iteration, int64_t consumed, int64_t first, int64_t count)>;
  Take take;
  Take take_validation = {};  // the same of text that is not learned from; empty: there is none
};

// Whole numbers [rows, length] of "FILE.safetensors:KEY"; without a key, of the only tensor that the file
// has. `what` is how messages begin. A ConfigError where they are no tokens of a vocabulary of this size.
struct GivenTokens {
  int64_t rows, length;
  std::vector<int64_t> tokens;
};
GivenTokens read_tokens(std::string_view what, const std::string& source, int64_t vocabulary);

// Random tokens that depend on the seed and the row alone.
TokenBatches mock_batches(const Config& config);

// "FILE.safetensors:KEY": an integer tensor [iterations, global batch, length + 1], used exactly as given.
TokenBatches replayed_batches(const std::string& source, const Config& config);

// The one that the configuration names; a ConfigError where it names none.
TokenBatches token_batches(const Config& config);

}  // namespace megatron
