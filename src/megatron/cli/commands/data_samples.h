#pragma once

#include "megatron/cli/command.h"
#include "megatron/cli/commands/data_settings.h"

namespace megatron {

// `data samples`: writes what training with these settings would see.
int write_data_samples(Invocation& invocation, DataSettings& settings);

}  // namespace megatron
