#pragma once

#include "megatron/base/log.h"
#include "megatron/training/run/run_data.h"

namespace megatron {

// --sft: conversations, or prompts and completions, from JSON lines or packed Parquet files, in blends and
// splits by rows.
// Rows without a token to learn are told to `log`, the first few by name.
RunData sft_data(const Config& config, const Log& log);

}  // namespace megatron
