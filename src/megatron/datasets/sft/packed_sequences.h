#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/datasets/sft/sft_tokens.h"

namespace megatron {

// A row of Bridge's packed format: whole sequences end to end, each with its last token. The mask of a token
// says whether the one behind it is learned.
struct PackedRow {
  std::vector<int64_t> input_ids, seq_start_id;
  std::vector<uint8_t> loss_mask;
};
PackedRow pack_row(std::span<const SftTokens* const> sequences);

// Appends `pad` until a sequence's length without its last token is a multiple; what is appended is not
// learned.
void pad_to_multiple(SftTokens& tokens, int64_t multiple, int64_t pad);

// The length that packing counts of a sequence: that of its inputs.
inline int64_t packed_length(const SftTokens& tokens) { return static_cast<int64_t>(tokens.ids.size()) - 1; }

// What Bridge writes beside a packed file: {dataset_max_seqlen, max_samples_per_bin, packing_factor,
// packing_efficiency (percent), pack_size, min_packed_seqlen}.
Json packing_metadata(std::span<const std::vector<int64_t>> bins, std::span<const int64_t> lengths,
                      int64_t pack_size);

// A packed row as the model reads it: inputs without each sequence's last token, labels without its first,
// positions that restart, cu_seqlens [0, …, length].
struct PackedSample {
  std::vector<int64_t> tokens, labels, positions;
  std::vector<float> loss_mask;
  std::vector<int32_t> cu_seqlens;
  int32_t max_seqlen = 0;
};
PackedSample collate_packed(const PackedRow& row, int64_t length, int64_t pad);

}  // namespace megatron
