#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// What the pattern of a hybrid model says of its layers, MTP layers, attention and pipeline stages, which
// goes before what other settings say of them. A pattern that cannot be read is left to the rule on patterns.
void derive_hybrid_layers(ConfigBuilder& builder);

}  // namespace megatron
