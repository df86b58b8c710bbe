#pragma once

#include "megatron/config/resolve/config_builder.h"

namespace megatron {

// The files of --finetune-hf-dataset and --finetune-data-files become conversations to train on: packed, and
// learned as a whole, as ModelOpt's scripts do.
void derive_finetune_files(ConfigBuilder& builder);

}  // namespace megatron
