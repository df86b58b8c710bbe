#pragma once

#include "megatron/cli/command.h"
#include "megatron/cli/commands/data_settings.h"
#include "megatron/datasets/sft/sft_encoder.h"

namespace megatron {

// How `data samples --kind sft` and `data pack` turn rows into tokens.
SftEncoder sft_encoder_of(const DataSettings& settings, const Tokenizer& tokenizer,
                          const chat::ChatTemplates& templates);

// `data pack`: packs the conversations of a JSON lines file into Bridge's packed Parquet, once for many runs.
int pack_data(Invocation& invocation, const DataSettings& settings);

}  // namespace megatron
