#pragma once

#include <array>

#include "megatron/datasets/gpt/gpt_sample.h"
#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/sft/conversation.h"
#include "megatron/datasets/sft/packed_sequences.h"
#include "megatron/datasets/sft/sft_encoder.h"

namespace megatron {

// One split of a JSON lines file: row i mod n is sample i, in the order of the file. Rows are encoded when
// they are read. Safe to share between threads.
class SftRows {
 public:
  // `max_rows` of the split are used at most; 0: all. Without `num_samples` every row is read once.
  SftRows(const std::string& path, SftEncoder encode, std::array<double, 2> ends, int64_t max_rows,
          std::optional<int64_t> num_samples);

  int64_t size() const { return size_; }
  int64_t rows() const { return range_.size(); }
  const Json& description() const { return description_; }
  SftTokens row(int64_t row) const;  // of the split; never fewer than two tokens
  SftTokens sample(int64_t i) const { return row(i % rows()); }

 private:
  JsonRows file_;
  SftEncoder encode_;
  IndexRange range_;
  int64_t size_;
  Json description_;
};

// How sequences are packed into samples of one length.
struct PackingOptions {
  int64_t length = 0;
  int64_t multiple = 1;  // each sequence is padded to one: context-parallel ranks share it evenly
  int64_t pad = 0;
  uint32_t seed = 1234;  // of the order in which bins are filled
  int threads = 1;       // that measure the rows
};

// Rows packed into samples once, before training: each into the first that has room, in a shuffled order.
// What is too long was cut by the encoder. Or a file that was packed before. Sample i is bin i mod n.
class PackedSftRows {
 public:
  PackedSftRows(SftRows rows, const PackingOptions& options, std::optional<int64_t> num_samples);
  // Bridge's packed Parquet files: columns input_ids, loss_mask and seq_start_id. Read whole.
  PackedSftRows(const std::string& parquet, const PackingOptions& options, std::array<double, 2> ends,
                std::optional<int64_t> num_samples);

  int64_t size() const { return size_; }
  int64_t bins() const { return static_cast<int64_t>(rows_ ? bins_.size() : packed_.size()); }
  const Json& description() const { return description_; }
  const Json& metadata() const { return metadata_; }  // as Bridge writes it; null of a packed file
  PackedRow packed_row(int64_t bin) const;            // whole sequences, as they are kept in packed files
  GptSample sample(int64_t i) const;

 private:
  std::optional<SftRows> rows_;
  std::vector<std::vector<int64_t>> bins_;  // rows of each
  std::vector<PackedRow> packed_;
  PackingOptions options_;
  int64_t size_ = 0;
  Json description_, metadata_;
};

// A row as a sample of its own, padded to `length`; what is not learned has no label.
GptSample unpacked_sample(const SftTokens& tokens, int64_t length, int64_t pad);

}  // namespace megatron
