#pragma once

#include "megatron/training/run/run_data.h"

namespace megatron {

// --sft: conversations, or prompts and completions, from JSON lines or packed Parquet files, in blends and
// splits by rows.
RunData sft_data(const Config& config);

}  // namespace megatron
