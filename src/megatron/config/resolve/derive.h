#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// Fills in what no source gave and other settings imply, one named step after the other.
void derive_defaults(ConfigBuilder& builder);

}  // namespace megatron
