#include "megatron/datasets/sft/packed_sequences.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {

PackedRow pack_row(std::span<const SftTokens* const> sequences) {
  PackedRow row;
  for (const SftTokens* sequence : sequences) {
    row.seq_start_id.push_back(static_cast<int64_t>(row.input_ids.size()));
    row.input_ids.insert(row.input_ids.end(), sequence->ids.begin(), sequence->ids.end());
    if (sequence->ids.empty()) continue;
    row.loss_mask.insert(row.loss_mask.end(), sequence->learned.begin() + 1, sequence->learned.end());
    row.loss_mask.push_back(0);
  }
  return row;
}

void pad_to_multiple(SftTokens& tokens, int64_t multiple, int64_t pad) {
  require(multiple > 0, "packing: sequences padded to a multiple of {}", multiple);
  while (packed_length(tokens) % multiple != 0) {
    tokens.ids.push_back(pad);
    tokens.learned.push_back(0);
  }
}

Json packing_metadata(std::span<const std::vector<int64_t>> bins, std::span<const int64_t> lengths,
                      int64_t pack_size) {
  int64_t longest = 0, most = 0, sequences = 0, shortest_bin = pack_size, total = 0;
  for (const auto& bin : bins) {
    int64_t tokens = 0;
    for (int64_t i : bin) {
      tokens += lengths[static_cast<size_t>(i)];
      longest = std::max(longest, lengths[static_cast<size_t>(i)]);
    }
    most = std::max(most, static_cast<int64_t>(bin.size()));
    sequences += static_cast<int64_t>(bin.size());
    shortest_bin = std::min(shortest_bin, tokens);
    total += tokens;
  }
  const auto rounded = [](double value) {
    return static_cast<double>(static_cast<int64_t>(value * 100 + 0.5)) / 100;
  };
  const auto count = static_cast<double>(std::max<size_t>(bins.size(), 1));
  Json metadata = Json::object();
  metadata["dataset_max_seqlen"] = longest;
  metadata["max_samples_per_bin"] = most;
  metadata["packing_factor"] = rounded(static_cast<double>(sequences) / count);
  metadata["packing_efficiency"] =
      rounded(100 * static_cast<double>(total) / count / static_cast<double>(pack_size));
  metadata["pack_size"] = pack_size;
  metadata["min_packed_seqlen"] = bins.empty() ? int64_t{0} : shortest_bin;
  return metadata;
}

PackedSample collate_packed(const PackedRow& row, int64_t length, int64_t pad) {
  PackedSample sample;
  sample.cu_seqlens.push_back(0);
  const auto total = static_cast<int64_t>(row.input_ids.size());
  require(static_cast<int64_t>(row.loss_mask.size()) == total, "packed row: {} tokens and a mask of {}",
          total, row.loss_mask.size());
  for (size_t s = 0; s < row.seq_start_id.size(); ++s) {
    const int64_t begin = row.seq_start_id[s],
                  end = s + 1 < row.seq_start_id.size() ? row.seq_start_id[s + 1] : total;
    require(0 <= begin && begin <= end && end <= total, "packed row: sequence {} at [{}, {}) of {} tokens", s,
            begin, end, total);
    for (int64_t i = begin; i + 1 < end; ++i) {
      const auto at = static_cast<size_t>(i);
      sample.tokens.push_back(row.input_ids[at]);
      sample.labels.push_back(row.input_ids[at + 1]);
      sample.loss_mask.push_back(row.loss_mask[at]);
      sample.positions.push_back(i - begin);
    }
    sample.cu_seqlens.push_back(static_cast<int32_t>(sample.tokens.size()));
    sample.max_seqlen =
        std::max(sample.max_seqlen, *(sample.cu_seqlens.end() - 1) - *(sample.cu_seqlens.end() - 2));
  }
  const auto used = static_cast<int64_t>(sample.tokens.size());
  require(used <= length, "packed row: {} tokens do not fit into {}; give a longer sequence", used, length);
  if (used < length) {
    sample.cu_seqlens.push_back(static_cast<int32_t>(length));
    sample.max_seqlen = std::max(sample.max_seqlen, static_cast<int32_t>(length - used));
  }
  for (int64_t i = used; i < length; ++i) {
    sample.tokens.push_back(pad);
    sample.labels.push_back(pad);
    sample.loss_mask.push_back(0);
    sample.positions.push_back(i - used);
  }
  return sample;
}

}  // namespace megatron
