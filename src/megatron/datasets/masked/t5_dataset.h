#pragma once

#include "megatron/datasets/masked/masked_dataset.h"

namespace megatron {

// A text whose masked spans the decoder restores. Encoder rows have the sequence length, the others the
// decoder's.
struct T5Sample {
  std::vector<int64_t> text_enc, enc_mask;
  std::vector<int64_t> text_dec, dec_mask, labels, loss_mask;
  bool truncated = false;
};

// Megatron-LM's T5MaskedWordPieceDataset. Safe to share between threads.
class T5Dataset {
 public:
  T5Dataset(std::shared_ptr<const SentenceStore> dataset, const MaskedDatasetConfig& config,
            int64_t decoder_length, Split split, std::array<double, 2> ends,
            std::optional<int64_t> num_samples);

  int64_t size() const { return samples_.size(); }
  const Json& description() const { return samples_.description(); }
  const SentenceSamples& samples() const { return samples_; }

  // An Error where the vocabulary has too few sentinels, or a text does not fit into its rows.
  T5Sample sample(int64_t i, RandomState* permutation_random = nullptr) const;

 private:
  int64_t seq_length_, decoder_length_;
  MaskingOptions masking_;
  WordPieces vocabulary_;
  SentenceSamples samples_;
};

}  // namespace megatron
