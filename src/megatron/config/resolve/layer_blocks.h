#pragma once

#include <vector>

#include "megatron/config/schema/model_config.h"

namespace megatron {

// Of every layer, as heterogeneous_layers_config_encoded_json describes them; none where layers do not
// differ. An Error where the text cannot be understood. Whoever makes a configuration keeps them in it.
std::vector<LayerBlock> read_layer_blocks(const ModelConfig& config);

// One layer, counted from 0, with the sizes of the model where layers do not differ; and the model with the
// sizes of that layer.
LayerBlock layer_block(const ModelConfig& config, int64_t layer);
ModelConfig of_layer(const ModelConfig& config, int64_t layer);

}  // namespace megatron
