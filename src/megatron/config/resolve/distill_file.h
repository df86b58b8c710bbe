#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// Takes the settings of distillation that the file of --export-kd-cfg has and nobody gave otherwise.
void read_distill_file(ConfigBuilder& builder);

}  // namespace megatron
