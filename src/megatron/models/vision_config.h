#pragma once

#include "megatron/config/schema/model_config.h"

namespace megatron {

// The tower's layers are those of a model of this configuration.
ModelConfig tower_config(const VisionConfig& vision);

}  // namespace megatron
