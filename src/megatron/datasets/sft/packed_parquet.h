#pragma once

#include <string>

#include "megatron/datasets/sft/sft_rows.h"

namespace megatron {

// Writes packed rows as Bridge's packed Parquet file: list columns input_ids, loss_mask and seq_start_id, a
// row a bin. PackedSftRows and Bridge read it. The path changes when the file is complete.
void write_packed_parquet(const PackedSftRows& rows, const std::string& path);

}  // namespace megatron
