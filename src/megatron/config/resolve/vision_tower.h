#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// Fills in what a vision tower takes from the language model; where flags ask for one, which it is.
void derive_vision(ConfigBuilder& builder);
// Sequences of a tower that flags ask for: images stand before seq_length tokens of text.
void add_image_tokens(ConfigBuilder& builder);

}  // namespace megatron
