#pragma once

#include <functional>
#include <optional>
#include <string>

#include "megatron/base/dtype.h"

namespace megatron {

// Told before each tensor, with the bytes copied so far and in all.
using ConvertProgress = std::function<void(const std::string& tensor, int64_t done, int64_t total)>;

struct ImportOptions {
  std::optional<DType> dtype;  // of the weights; as the files have them where not given
  int files = 1;               // that the tensors are spread over
  ConvertProgress progress = {};
  std::function<void(const std::string& note)> note = {};  // told what of the files is not converted
};

// Hugging Face's files → a checkpoint under `root`, which keeps the source's configuration and tokenizer, so
// that export_model() needs nothing more. Both ways stream: memory for one tensor, whatever the model's size.
// Returns the checkpoint's path.
std::string import_model(const std::string& hf_directory, const std::string& root,
                         const ImportOptions& options = {});

struct ExportOptions {
  std::optional<DType> dtype;
  std::string hf_config;  // a directory with the config.json to follow, where the checkpoint keeps none
  int64_t shard_bytes = int64_t{5} << 30;  // of a file, where the source's own division cannot be kept
  ConvertProgress progress = {};
};

// A checkpoint → a new directory that the Hugging Face libraries load. It appears whole or not at all.
void export_model(const std::string& checkpoint, const std::string& directory,
                  const ExportOptions& options = {});

}  // namespace megatron
