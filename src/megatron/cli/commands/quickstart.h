#pragma once

#include <string>

#include "megatron/base/log.h"

namespace megatron {

struct QuickstartOptions {
  std::string folder = ".";  // whose text is learned
  int64_t steps = 300;
  int tensor_parallel = 2, pipeline_parallel = 2;
  int64_t vocab_size = 2048;
  std::string out = "quickstart";  // the folder of everything that is made
  std::string prompt = "namespace megatron {\n";
  int64_t sample_tokens = 100;
};

struct QuickstartReport {
  double unigram_entropy = 0;  // of the text, in nats a token: what knowing frequencies alone would reach
  double first_loss = 0, last_loss = 0, validation_loss = 0;
  double tokens_per_second = 0;
  std::string tokenizer, data, checkpoint, hf;  // where each lies
  std::string sample;
};

// The whole of training on nothing but a clone: trains a tokenizer on the text files under a folder, makes
// .bin/.idx of them, trains a small model, evaluates and saves it, exports it for Hugging Face's libraries
// and continues a prompt.
QuickstartReport quickstart(const QuickstartOptions& options, const Log& log);

}  // namespace megatron
