#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/config/config.h"
#include "megatron/datasets/batch_source.h"

namespace megatron {

struct NamedSource {
  std::string name;  // in the log
  std::shared_ptr<const BatchSource> source;
};

// What a run learns from, and what it is evaluated on.
struct RunData {
  std::shared_ptr<const BatchSource> train = {};
  std::vector<NamedSource> validation = {};      // each evaluated by itself; none: no evaluation
  std::shared_ptr<const BatchSource> test = {};  // at the end of the run; null: none
  int64_t iterations = -1;                       // that there are; -1: as many as asked for
};

// Whole numbers [rows, length] of "FILE.safetensors:KEY"; without a key, of the only tensor that the file
// has. `what` is how messages begin. A ConfigError where they are no tokens of a vocabulary of this size.
struct GivenTokens {
  int64_t rows, length;
  std::vector<int64_t> tokens;
};
GivenTokens read_tokens(std::string_view what, const std::string& source, int64_t vocabulary);

// "FILE.safetensors:KEY": an integer tensor [iterations, global batch, length + 1], used exactly as given.
RunData replayed_data(const std::string& source, const Config& config);

int64_t evaluation_batch(const Config& config);  // sequences in a batch of an evaluation

// What the configuration names, read ahead by its --num-workers; a ConfigError where it names nothing, or
// where the checkpoint of --load has another vocabulary.
RunData run_data(const Config& config);

}  // namespace megatron
