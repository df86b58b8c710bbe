#pragma once

#include <string>

#include "megatron/base/json.h"

namespace megatron {

// The fields of `model` that a Hugging Face directory gives, as --hf hands them to the configuration.
Json hf_model_settings(const std::string& directory);

}  // namespace megatron
