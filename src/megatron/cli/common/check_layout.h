#pragma once

#include "megatron/config/config.h"

namespace megatron {

// For commands that make their own configuration: refuses what the rules of settings refuse of this model,
// batch and layout, with their reasons and fixes, before anything is allocated.
void check_layout(const Config& config, int64_t data_parallel = 1);

}  // namespace megatron
