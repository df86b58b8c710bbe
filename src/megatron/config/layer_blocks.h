#pragma once

#include <vector>

#include "megatron/config/model_config.h"

namespace megatron {

// One layer of a model whose layers differ: either part may be missing.
struct LayerBlock {
  bool attention = true, mlp = true;
  int64_t query_groups = 0, ffn_hidden_size = 0;
};

// Of every layer, as heterogeneous_layers_config_encoded_json describes them; none where layers do not
// differ. An Error where the text cannot be understood.
std::vector<LayerBlock> layer_blocks(const ModelConfig& config);

// The model with the sizes of one layer, counted from 0.
ModelConfig of_layer(const ModelConfig& config, int64_t layer);

}  // namespace megatron
