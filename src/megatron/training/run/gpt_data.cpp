#include "megatron/training/run/gpt_data.h"

#include "megatron/datasets/gpt/gpt_source.h"
#include "megatron/datasets/indexed/indexed_dataset.h"

namespace megatron {
namespace {

DataSource data_source(const DatasetConfig& data) {
  DataSource source{.surplus = 0.005, .cache_path = data.path_to_cache};
  source.blend =
      parse_blend(data.data_args_path.empty() ? data.data_path : read_blend_words(data.data_args_path));
  std::array<std::vector<std::string>, 3> own = {data.train_data_path, data.valid_data_path,
                                                 data.test_data_path};
  if (!data.per_split_data_args_path.empty()) own = read_split_words(data.per_split_data_args_path);
  for (size_t s = 0; s < own.size(); ++s) source.per_split[s] = parse_blend(own[s]);
  if (source.blend) source.matrix = split_matrix(parse_split(data.split));
  return source;
}

// Samples of a run, as Megatron-LM counts them.
SplitSizes wanted_samples(const Config& config) {
  const TrainConfig& train = config.train;
  const ValidationConfig& validation = config.validation;
  const int64_t iterations =
      train.train_iters > 0 ? train.train_iters : train.train_samples / train.global_batch_size;
  if (iterations <= 0) throw ConfigError("--data-path: give --train-iters N or --train-samples N");
  const int64_t rounds = validation.eval_interval > 0 ? iterations / validation.eval_interval + 1 : 1;
  const int64_t round = validation.eval_iters * evaluation_batch(config);
  const int64_t samples =
      train.train_samples > 0 ? train.train_samples : iterations * train.global_batch_size;
  return {samples, rounds * round, round};
}

}  // namespace

bool has_indexed_data(const DatasetConfig& data) {
  return !data.data_path.empty() || !data.train_data_path.empty() || !data.valid_data_path.empty() ||
         !data.test_data_path.empty() || !data.data_args_path.empty() ||
         !data.per_split_data_args_path.empty();
}

RunData gpt_data(const Config& config) {
  const DatasetConfig& data = config.dataset;
  DataSource source = data_source(data);
  GptDatasetConfig options;
  options.identity = {.seed = static_cast<uint32_t>(data.random_seed), .seq_length = config.model.seq_length};
  if (source.blend) {
    options.identity.split = data.split;
    options.identity.matrix = source.matrix;
  }
  // What nobody reads is not built: small data may have no document in it.
  const bool evaluates = config.validation.eval_iters > 0 && config.validation.eval_interval > 0;
  for (Split split : {Split::valid, Split::test}) {
    if (evaluates) continue;
    source.per_split[static_cast<size_t>(split)].reset();
    if (source.matrix) (*source.matrix)[static_cast<size_t>(split)].reset();
  }
  options.sample.create_attention_mask = false;
  options.sample.eod = -1;  // only options that are off ask for it
  options.cache_path = data.path_to_cache;
  options.threads = static_cast<int>(data.num_dataset_builder_threads);
  auto splits = build_splits<GptDataset>(
      source, wanted_samples(config), [&](const std::string& prefix, Split split, auto ends, auto samples) {
        auto store =
            std::make_shared<IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = data.mmap_bin_files});
        return std::make_shared<const GptDataset>(std::move(store), options, split, ends, samples);
      });
  RunData run;
  auto take = [&](Split split) -> std::shared_ptr<const BatchSource> {
    auto& own = splits[static_cast<size_t>(split)];
    return own ? gpt_source(std::move(*own), config.model.vocab_size) : nullptr;
  };
  run.train = take(Split::train);
  if (!run.train)
    throw ConfigError(
        "--data-path: the training split is empty; give --split or --train-data-path otherwise");
  if (auto validation = take(Split::valid)) run.validation.push_back({"validation", std::move(validation)});
  run.test = take(Split::test);
  return run;
}

}  // namespace megatron
