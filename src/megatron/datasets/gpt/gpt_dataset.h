#pragma once

#include <memory>

#include "megatron/datasets/gpt/gpt_indices.h"
#include "megatron/datasets/gpt/gpt_sample.h"

namespace megatron {

// What all datasets of a run share in their cache descriptions.
struct DatasetIdentity {
  uint32_t seed = 1234;
  int64_t seq_length = 0;
  std::optional<std::string> split;  // as given; none with data of its own for each split
  std::optional<SplitMatrix> matrix;
  Json tokenizer = Json::object();  // the tokenizer's own identifiers
};

// Upstream's description of a dataset, whose hash names its cached indices.
Json describe_dataset(std::string_view dataset_class, const std::string& path,
                      const DatasetIdentity& identity, Split split, std::optional<int64_t> num_samples);

struct GptDatasetConfig {
  DatasetIdentity identity;
  GptSampleOptions sample;
  bool drop_last_partial_validation = true;
  bool cache = true;       // whether indices are kept on disk
  std::string cache_path;  // empty: PREFIX/cache/GPTDataset_indices
  int threads = 1;         // that build indices
};

// Samples of equal length, cut from documents that stand end to end in a shuffled order: Megatron-LM's
// GPTDataset. Safe to share between threads.
class GptDataset {
 public:
  // `ends` are the shares of the data between which the split lies. `class_name` is upstream's.
  GptDataset(std::shared_ptr<const SequenceStore> store, const GptDatasetConfig& config, Split split,
             std::array<double, 2> ends, std::optional<int64_t> num_samples,
             std::string_view class_name = "GPTDataset");

  int64_t size() const { return indices_.shuffle.rows(); }
  int64_t seq_length() const { return seq_length_; }
  const Json& description() const { return description_; }
  const GptIndices& indices() const { return indices_; }
  IndexRange sequences() const { return sequences_; }
  const GptSampleOptions& options() const { return options_; }

  // Tokens of sample i before padding, at most seq_length and the extra one.
  SampleText text(int64_t i) const;
  GptSample sample(int64_t i) const;
  // A sample of padding alone, which no loss counts: for batches that real ones do not fill.
  GptSample padding() const;

 private:
  std::shared_ptr<const SequenceStore> store_;
  int64_t seq_length_;
  GptSampleOptions options_;
  Json description_;
  IndexRange sequences_;
  GptIndices indices_;
};

}  // namespace megatron
