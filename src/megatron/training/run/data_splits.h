#pragma once

#include "megatron/datasets/gpt/gpt_source.h"
#include "megatron/training/run/run_data.h"

namespace megatron {

// Where the configuration's data lies, by splits.
DataSource data_source(const Config& config);
bool reads(const Config& config, Split split);  // whether the run reads this split
DataSource only_split(DataSource source, Split split);
// The validation data, or with --multiple-validation-sets each prefix of it by itself, with names.
std::vector<std::pair<std::string, DataSource>> validation_sources(const Config& config,
                                                                   const DataSource& source);

// What the descriptions of all its datasets share.
DatasetIdentity data_identity(const Config& config, const DataSource& source);

// Samples of each split that the run reads, as Megatron-LM counts them.
SplitSizes wanted_samples(const Config& config);

// The order in which a split of so many samples is read.
SampleOrder sample_order(const Config& config, Split split, int64_t total);

// One source a split, of datasets that make(prefix, split, ends, samples) gives; `to_source` makes a source
// of one split's data. What nobody reads is not built: small data may have no document in it.
template <class Dataset, class Make, class ToSource>
RunData run_data_of(const Config& config, const DataSource& source, Make make, ToSource to_source) {
  const auto take = [&](Split split, const DataSource& from) -> std::shared_ptr<const BatchSource> {
    if (!reads(config, split)) return nullptr;
    auto splits = build_splits<Dataset>(only_split(from, split), wanted_samples(config), make);
    auto& own = splits[static_cast<size_t>(split)];
    return own ? to_source(split, std::make_shared<const BlendedDataset<Dataset>>(std::move(*own))) : nullptr;
  };
  RunData run{.train = take(Split::train, source)};
  for (const auto& [name, set] : validation_sources(config, source))
    if (auto validation = take(Split::valid, set)) run.validation.push_back({name, std::move(validation)});
  run.test = take(Split::test, source);
  if (!run.train)
    throw ConfigError(
        "--data-path: the training split is empty; give --split or --train-data-path otherwise");
  return run;
}

template <class Dataset, class Make>
RunData run_data_of(const Config& config, const DataSource& source, Make make) {
  return run_data_of<Dataset>(config, source, make,
                              [config](Split split, std::shared_ptr<const BlendedDataset<Dataset>> data) {
                                SampleOrder order = sample_order(config, split, data->size());
                                return gpt_source(read_blend(std::move(data), config.model.seq_length),
                                                  std::move(order), config.model.vocab_size);
                              });
}

}  // namespace megatron
