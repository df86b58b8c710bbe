#include "megatron/datasets/gpt/gpt_dataset.h"

#include "megatron/base/error.h"

namespace megatron {

Json describe_dataset(std::string_view dataset_class, const std::string& path,
                      const DatasetIdentity& identity, Split split, std::optional<int64_t> num_samples) {
  Json json = Json::object();
  json["class"] = dataset_class;
  json["dataset_path"] = path;
  json["num_samples"] = num_samples ? Json(*num_samples) : Json();
  json["index_split"] = name_of(split);
  json["random_seed"] = int64_t{identity.seed};
  json["sequence_length"] = identity.seq_length;
  json["split"] = identity.split ? Json(*identity.split) : Json();
  json["split_matrix"] = identity.matrix ? split_matrix_json(*identity.matrix) : Json();
  json["tokenizer"] = identity.tokenizer;
  return json;
}

GptDataset::GptDataset(std::shared_ptr<const SequenceStore> store, const GptDatasetConfig& config,
                       Split split, std::array<double, 2> ends, std::optional<int64_t> num_samples,
                       std::string_view class_name)
    : store_(std::move(store)),
      seq_length_(config.identity.seq_length),
      options_(config.sample),
      description_(describe_dataset(class_name, store_->name(), config.identity, split, num_samples)),
      sequences_(split_range(ends, store_->lengths().size())) {
  IndexCache cache;
  if (config.cache) {
    const std::string folder = config.cache_path.empty()
                                   ? fmt::format("{}/cache/{}_indices", store_->name(), class_name)
                                   : config.cache_path;
    cache = IndexCache(folder, description_, fmt::format("{}-{}", class_name, name_of(split)));
  }
  const GptIndexOptions options{
      .seq_length = seq_length_,
      .num_samples = num_samples,
      .seed = config.identity.seed,
      .extra_token = options_.extra_token,
      .drop_last_partial = split != Split::valid || config.drop_last_partial_validation};
  CpuPool pool(config.threads);
  indices_ = load_or_build_gpt_indices(store_->lengths(), sequences_, store_->name(), options, cache, pool,
                                       store_->tokens_between(sequences_.begin, sequences_.end));
}

SampleText GptDataset::text(int64_t i) const {
  require(i >= 0 && i < size(), "{}: sample {} of {}", store_->name(), i, size());
  const int64_t row = indices_.shuffle[i], extra = options_.extra_token ? 1 : 0;
  const bool known = row >= 0 && row + 1 < indices_.samples.rows();
  const int64_t first = known ? indices_.samples.at(row, 0) : -1,
                last = known ? indices_.samples.at(row + 1, 0) : -1;
  require(first >= 0 && first <= last && last < indices_.documents.rows(),
          "{}: sample {} lies in documents {} to {}; its cached index is damaged, delete it", store_->name(),
          i, first, last);
  const PackedArray<int32_t> lengths = store_->lengths();
  SampleText text;
  text.tokens.reserve(static_cast<size_t>(seq_length_ + extra));
  for (int64_t d = first; d <= last; ++d) {
    const int64_t sequence = indices_.documents[d];
    require(sequence >= 0 && sequence < lengths.size(),
            "{}: sequence {} of {}; its cached index is damaged, delete it", store_->name(), sequence,
            lengths.size());
    const int64_t begin = d == first ? indices_.samples.at(row, 1) : 0;
    const int64_t end = d == last ? indices_.samples.at(row + 1, 1) + extra : lengths[sequence];
    const auto taken = static_cast<int64_t>(text.tokens.size());
    require(
        begin >= 0 && begin <= end && end <= lengths[sequence] && end - begin <= seq_length_ + extra - taken,
        "{}: sample {} takes tokens {} to {} of sequence {}; its cached index is damaged, delete it",
        store_->name(), i, begin, end, sequence);
    text.tokens.resize(static_cast<size_t>(taken + end - begin));
    store_->read(sequence, begin, std::span(text.tokens).subspan(static_cast<size_t>(taken)));
    text.parts.push_back(end - begin);
  }
  return text;
}

GptSample GptDataset::sample(int64_t i) const { return make_gpt_sample(text(i), seq_length_, options_); }

GptSample GptDataset::padding() const {
  GptSample sample = make_gpt_sample({}, seq_length_, options_);
  std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0.0f);
  return sample;
}

}  // namespace megatron
