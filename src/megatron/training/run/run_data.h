#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/base/log.h"
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

// A whole number of a tensor of any integer dtype; `what` begins the message where it is another.
int64_t integer_at(std::string_view what, const Tensor& tensor, int64_t index);

// Whole numbers [rows, length] of "FILE.safetensors:KEY"; without a key, of the only tensor that the file
// has. `what` is how messages begin. A ConfigError where they are no tokens of a vocabulary of this size.
struct GivenTokens {
  int64_t rows, length;
  std::vector<int64_t> tokens;
};
GivenTokens read_tokens(std::string_view what, const std::string& source, int64_t vocabulary);

// "FILE.safetensors:KEY": an integer tensor [iterations, global batch, length + 1], used exactly as given.
// Refuses rows that are longer than the positions that the model has learned. `what` names them.
void require_positions(std::string_view what, int64_t length, const ModelConfig& model);

RunData replayed_data(const std::string& source, const Config& config);

int64_t evaluation_batch(const Config& config);  // sequences in a batch of an evaluation

// What the configuration names, read ahead by its --num-workers; a ConfigError where it names nothing, or
// where the checkpoint of --load has another vocabulary.
// `log` is told what is odd about the data while it is read.
RunData run_data(const Config& config, const Log& log = Log());

// Of a run that makes its data itself: rows of --seq-length, which are never read.
RunData no_data(const Config& config);

}  // namespace megatron
