#pragma once

#include <string>

#include "megatron/base/log.h"
#include "megatron/config/config.h"

namespace megatron {

struct QuickstartOptions {
  std::string folder = ".";  // whose text is learned
  int64_t steps = 300;
  int tensor_parallel = 1, pipeline_parallel = 1;
  std::string save = "quickstart-checkpoint";
  int threads = 0;  // of the whole run; 0: every core
  std::string prompt = "namespace megatron {\n";
  int64_t sample_tokens = 200;
};

struct QuickstartReport {
  double unigram_entropy =
      0;  // of the text, in nats per byte: what knowing letter frequencies alone would reach
  double first_loss = 0, last_loss = 0, validation_loss = 0;
  double tokens_per_second = 0;
  std::string checkpoint;  // where it lies
  std::string sample;
};

// The configuration that quickstart trains: a small GPT over bytes.
Config quickstart_config(const QuickstartOptions& options);

// Trains on the text files under a folder and continues a prompt: the whole engine on nothing but a clone.
QuickstartReport quickstart(const QuickstartOptions& options, const Log& log);

}  // namespace megatron
