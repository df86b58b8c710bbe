#pragma once

#include "megatron/training/run/data_splits.h"

namespace megatron {

bool has_indexed_data(const DatasetConfig& data);  // --data-path or one of its likes is given

// Samples from `.bin/.idx` files, or Megatron-LM's mock sequences, in its order, blends and splits; builds or
// maps their indices. With --fim-data, documents are rearranged.
RunData gpt_data(const Config& config);

}  // namespace megatron
