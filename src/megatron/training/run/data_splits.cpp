#include "megatron/training/run/data_splits.h"

#include <algorithm>
#include <filesystem>

#include "megatron/training/run/batch_schedule.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

std::array<std::vector<std::string>, 3> paths_of_splits(const DatasetConfig& data) {
  if (!data.per_split_data_args_path.empty()) return read_split_words(data.per_split_data_args_path);
  if (data.dataset_root.empty() || !data.sft)
    return {data.train_data_path, data.valid_data_path, data.test_data_path};
  // What is not there is not evaluated; training must be there.
  const auto file = [&](const char* name, bool needed) -> std::vector<std::string> {
    const std::string path = data.dataset_root + "/" + name;
    return needed || std::filesystem::exists(path) ? std::vector{path} : std::vector<std::string>{};
  };
  return {file("training.jsonl", true), file("validation.jsonl", false), file("test.jsonl", false)};
}

std::string split_text(const DatasetConfig& data) { return data.mock_data ? "1,1,1" : data.split; }

// Data-parallel replicas, of as many ranks as the configuration knows of.
int64_t replicas_of(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t model_ranks = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size *
                              parallel.context_parallel_size;
  const int64_t training = config.inprocess_restart.active_world_size;  // 0: all ranks
  const int64_t world = std::max(training > 0 ? training : config.run.world_size, model_ranks);
  return world / model_ranks;
}

// At least one: a run of none, which reads weights and saves them, has the data of one.
int64_t iterations_of(const Config& config) {
  const TrainConfig& train = config.train;
  if (train.train_samples == 0) return std::max<int64_t>(1, train.train_iters);
  const BatchSchedule batches(config, replicas_of(config));  // of batches that grow there are more
  return std::max<int64_t>(1, batches.iterations_of(train.train_samples));
}

}  // namespace

DataSource data_source(const Config& config) {
  const DatasetConfig& data = config.dataset;
  DataSource source{.surplus = data.mid_level_dataset_surplus, .cache_path = data.path_to_cache};
  if (data.mock_data) {
    source.blend = Blend{.prefixes = {"mock"}};
  } else {
    source.blend =
        parse_blend(data.data_args_path.empty() ? data.data_path : read_blend_words(data.data_args_path));
    const auto own = paths_of_splits(data);
    for (size_t s = 0; s < own.size(); ++s) source.per_split[s] = parse_blend(own[s]);
  }
  if (source.blend) source.matrix = split_matrix(parse_split(split_text(data)));
  return source;
}

bool reads(const Config& config, Split split) {
  const ValidationConfig& validation = config.validation;
  const bool evaluates = validation.eval_iters > 0 && validation.eval_interval > 0;
  return split == Split::train   ? true
         : split == Split::valid ? evaluates && config.dataset.do_validation
                                 : evaluates && config.dataset.do_test;
}

DataSource only_split(DataSource source, Split split) {
  for (Split other : kSplits) {
    if (other == split) continue;
    source.per_split[static_cast<size_t>(other)].reset();
    if (source.matrix) (*source.matrix)[static_cast<size_t>(other)].reset();
  }
  return source;
}

std::vector<std::pair<std::string, DataSource>> validation_sources(const Config& config,
                                                                   const DataSource& source) {
  const ValidationConfig& validation = config.validation;
  const auto valid = static_cast<size_t>(Split::valid);
  const std::optional<Blend>& blend = source.blend ? source.blend : source.per_split[valid];
  if (!validation.multiple_validation_sets || !blend) return {{"validation", source}};
  if (blend->weights)
    throw ConfigError("--multiple-validation-sets: the validation data has weights; leave them out");
  const std::vector<std::string>& names = validation.validation_set_names;
  if (!names.empty() && names.size() != blend->prefixes.size())
    throw ConfigError(
        fmt::format("--validation-set-names: {} names for {} sets", names.size(), blend->prefixes.size()));
  std::vector<std::pair<std::string, DataSource>> sets;
  for (const std::string& prefix : blend->prefixes) {
    DataSource own = source;
    (source.blend ? own.blend : own.per_split[valid]) = Blend{.prefixes = {prefix}};
    const std::string last = prefix.substr(prefix.find_last_of('/') + 1);
    sets.emplace_back(names.empty() ? last : names[sets.size()], std::move(own));
  }
  return sets;
}

DatasetIdentity data_identity(const Config& config, const DataSource& source) {
  DatasetIdentity identity{.seed = static_cast<uint32_t>(config.dataset.random_seed),
                           .seq_length = config.model.seq_length};
  identity.tokenizer = tokenizer_description(config.tokenizer);
  if (source.blend) {
    identity.split = split_text(config.dataset);
    identity.matrix = source.matrix;
  }
  return identity;
}

SplitSizes wanted_samples(const Config& config) {
  const TrainConfig& train = config.train;
  const ValidationConfig& validation = config.validation;
  const int64_t iterations = iterations_of(config);
  const int64_t rounds = validation.eval_interval > 0 ? iterations / validation.eval_interval + 1 : 1;
  const int64_t round = validation.eval_iters * evaluation_batch(config);
  const int64_t samples =
      train.train_samples > 0 ? train.train_samples : iterations * train.global_batch_size;
  if (validation.full_validation) return {samples, std::nullopt, round};  // every sample once
  return {samples, rounds * round, round};
}

SampleOrder sample_order(const Config& config, Split split, int64_t total) {
  const ValidationConfig& validation = config.validation;
  // A full validation reads every sample once, whatever the loader.
  if (config.dataset.dataloader_type != DataloaderType::cyclic ||
      (split == Split::valid && validation.full_validation))
    return SampleOrder::in_turn(total);
  const bool own = split != Split::train && validation.eval_micro_batch_size > 0;
  const int64_t micro_batch = own ? validation.eval_micro_batch_size : config.train.micro_batch_size;
  return SampleOrder::cyclic(total, micro_batch, replicas_of(config), config.dataset.data_sharding);
}

}  // namespace megatron
