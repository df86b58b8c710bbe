#pragma once

#include "megatron/config/schema/model_config.h"
#include "megatron/nn/parameter.h"

namespace megatron {

// How matrices start: those that read the residual stream, and those whose result is added to it, which start
// smaller the more layers there are.
Initializer input_initializer(const ModelConfig& config);
Initializer output_initializer(const ModelConfig& config);

}  // namespace megatron
