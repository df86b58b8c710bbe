#pragma once

#include "megatron/datasets/masked/masked_dataset.h"

namespace megatron {

// A masked text of one or two parts. All rows have the sequence length.
struct BertSample {
  std::vector<int64_t> text, types, labels, loss_mask, padding_mask;
  bool is_random = false;  // whether the second part came first
  bool truncated = false;
};

// Megatron-LM's BERTMaskedWordPieceDataset. Safe to share between threads.
class BertDataset {
 public:
  BertDataset(std::shared_ptr<const SentenceStore> dataset, const MaskedDatasetConfig& config,
              bool classification_head, Split split, std::array<double, 2> ends,
              std::optional<int64_t> num_samples);

  int64_t size() const { return samples_.size(); }
  const Json& description() const { return samples_.description(); }
  const SentenceSamples& samples() const { return samples_; }

  // With permutation, `permutation_random` is the stream that upstream shares among samples.
  BertSample sample(int64_t i, RandomState* permutation_random = nullptr) const;

 private:
  int64_t seq_length_;
  bool classification_head_;
  MaskingOptions masking_;
  WordPieces vocabulary_;
  SentenceSamples samples_;
};

}  // namespace megatron
