#pragma once

#include <string>

#include "megatron/base/json.h"

namespace megatron {

class AutoBridge;

// The fields of `model` that a Hugging Face model gives a training run, as --hf hands them to the
// configuration.
Json hf_model_settings(const AutoBridge& bridge);
// The same of a directory that may hold config.json alone: who plans a run needs no weights. Weights that are
// there are checked.
Json read_hf_settings(const std::string& directory);

}  // namespace megatron
