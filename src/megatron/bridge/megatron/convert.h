#pragma once

#include "megatron/bridge/convert.h"

namespace megatron {

// A checkpoint that Megatron-LM wrote (torch_dist or torch) → one of ours under `root`, with optimizer state,
// iteration and samples. Streams like import_model(). Returns the checkpoint's path.
std::string import_megatron(const std::string& directory, const std::string& root,
                            const ImportOptions& options = {});

// A checkpoint of ours → a new torch_dist checkpoint under `root`, with its tracker file. It appears whole or
// not at all. Returns its path.
std::string export_megatron(const std::string& checkpoint, const std::string& root,
                            const ExportOptions& options = {});

}  // namespace megatron
