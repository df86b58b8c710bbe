#pragma once

#include "megatron/training/run/run_data.h"

namespace megatron {

bool has_indexed_data(const DatasetConfig& data);  // --data-path or one of its likes is given

// Samples from `.bin/.idx` files in Megatron-LM's order, blends and splits; builds or maps their indices.
RunData gpt_data(const Config& config);

}  // namespace megatron
