#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// Which kind of model is meant, where --model-type does not say, and what follows from it: BERT's heads, T5's
// layers and lengths.
void derive_model_type(ConfigBuilder& builder);

}  // namespace megatron
