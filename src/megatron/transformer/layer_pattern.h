#pragma once

#include "megatron/config/model_config.h"

namespace megatron {

// Which layers (counted from 0 over the whole model) differ from the others.
bool has_window(const ModelConfig& config, int64_t layer);   // sees only the last window_size[0] + 1 keys
bool has_rope(const ModelConfig& config, int64_t layer);     // turns queries and keys by their positions
bool has_experts(const ModelConfig& config, int64_t layer);  // in place of an MLP

// The same model with its patterns written out for `layers` layers: those
// beyond its own are as its last.
ModelConfig continue_patterns(const ModelConfig& config, int64_t layers);

}  // namespace megatron
