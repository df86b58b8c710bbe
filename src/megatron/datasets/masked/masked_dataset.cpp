#include "megatron/datasets/masked/masked_dataset.h"

#include "megatron/base/error.h"

namespace megatron {

SentenceSamples::SentenceSamples(std::shared_ptr<const SentenceStore> dataset,
                                 const MaskedDatasetConfig& config, Split split, std::array<double, 2> ends,
                                 std::optional<int64_t> num_samples, std::string_view class_name,
                                 const Json& extra, int64_t special_tokens, int64_t min_sentences)
    : dataset_(std::move(dataset)),
      seed_(config.identity.seed),
      description_(describe_dataset(class_name, dataset_->name(), config.identity, split, num_samples)),
      documents_(split_range(ends, dataset_->document_index().size() - 1)) {
  if (!num_samples)
    throw ConfigError(fmt::format("{}: {} needs a number of samples", dataset_->name(), class_name));
  description_["masking_probability"] = config.masking.probability;
  description_["short_sequence_probability"] = config.short_sequence_probability;
  description_["masking_max_ngram"] = config.masking.max_ngram;
  description_["masking_do_full_word"] = config.masking.full_word;
  description_["masking_do_permutation"] = config.masking.permutation;
  description_["masking_use_longer_ngrams"] = config.masking.longer_ngrams;
  description_["masking_use_geometric_distribution"] = config.masking.geometric;
  for (const auto& [key, value] : extra.as_object()) description_[key] = value;
  IndexCache cache;
  if (config.cache) {
    const std::string folder = config.cache_path.empty()
                                   ? fmt::format("{}/cache/{}_indices", dataset_->name(), class_name)
                                   : config.cache_path;
    cache = IndexCache(folder, description_, class_name);
  }
  const SentenceMapOptions options{.max_samples = *num_samples,
                                   .max_length = config.identity.seq_length - special_tokens,
                                   .short_probability = config.short_sequence_probability,
                                   .seed = seed_,
                                   .min_sentences = min_sentences};
  map_ = load_or_build_sentence_map(dataset_->document_index(), documents_, dataset_->lengths(),
                                    dataset_->name(), options, cache);
}

SentenceSamples::Sample SentenceSamples::sample(int64_t i) const {
  require(i >= 0 && i < size(), "{}: sample {} of {}", dataset_->name(), i, size());
  const int64_t first = map_.at(i, 0), end = map_.at(i, 1);
  const int64_t sequences = dataset_->lengths().size();
  require(first >= 0 && first < end && end <= sequences,
          "{}: sample {} holds sentences {} to {} of {}; its cached index is damaged, delete it",
          dataset_->name(), i, first, end, sequences);
  Sample sample{{}, map_.at(i, 2), RandomState(static_cast<uint32_t>(seed_ + static_cast<uint64_t>(i)))};
  for (int64_t s = first; s < end; ++s) {
    const int32_t length = dataset_->lengths()[s];
    require(length >= 0, "{}: sentence {} has {} tokens; its index is damaged", dataset_->name(), s, length);
    std::vector<int64_t>& tokens = sample.sentences.emplace_back();
    require(length <= dataset_->max_length(),
            "{}: sentence {} of {} tokens leaves the data; its index is damaged", dataset_->name(), s,
            length);
    tokens.resize(static_cast<size_t>(length));
    dataset_->read(s, 0, tokens);
  }
  return sample;
}

}  // namespace megatron
