#pragma once

#include <memory>

#include "megatron/datasets/gpt/gpt_dataset.h"
#include "megatron/datasets/indexed/sequence_store.h"
#include "megatron/datasets/masked/masking.h"
#include "megatron/datasets/masked/sentence_map.h"

namespace megatron {

struct MaskedDatasetConfig {
  DatasetIdentity identity;
  WordPieces vocabulary;
  MaskingOptions masking;
  double short_sequence_probability = 0.1;
  bool cache = true;
  std::string cache_path;  // empty: PREFIX/cache/CLASS_indices
};

// The sentences of a BERT or T5 dataset and how they are packed into samples.
class SentenceSamples {
 public:
  // `extra` is what the class adds to the description; `special_tokens` a sample needs room for.
  SentenceSamples(std::shared_ptr<const SentenceStore> dataset, const MaskedDatasetConfig& config,
                  Split split, std::array<double, 2> ends, std::optional<int64_t> num_samples,
                  std::string_view class_name, const Json& extra, int64_t special_tokens,
                  int64_t min_sentences);

  int64_t size() const { return map_.rows(); }
  const Json& description() const { return description_; }
  const IndexArray& map() const { return map_; }
  IndexRange documents() const { return documents_; }

  struct Sample {
    std::vector<std::vector<int64_t>> sentences;
    int64_t target;
    RandomState random;  // of this sample
  };
  Sample sample(int64_t i) const;

 private:
  std::shared_ptr<const SentenceStore> dataset_;
  uint32_t seed_;
  Json description_;
  IndexRange documents_;
  IndexArray map_;
};

}  // namespace megatron
