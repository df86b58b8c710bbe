#include "megatron/training/run/gpt_data.h"

#include "megatron/datasets/gpt/fim.h"
#include "megatron/datasets/gpt/mock_sequences.h"
#include "megatron/datasets/indexed/indexed_dataset.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

// Which token ends a document, and which fills up.
void find_special_tokens(const Config& config, GptSampleOptions& sample) {
  sample.eod = sample.pad = -1;
  if (config.tokenizer.tokenizer_type == TokenizerKind::none) return;
  const SpecialIds ids = vocabulary_facts(config.tokenizer).specials;
  const std::array<int64_t, 2> ends = {ids.eos, ids.eod};
  sample.eod = ids.eod;
  if (ids.pad >= 0) sample.pad = resolve_pad_id(ids.pad, ends, config.dataset.allow_ambiguous_pad_tokens);
  const bool needed = sample.reset_position_ids || sample.reset_attention_mask || sample.eod_mask_loss;
  if (needed && sample.eod < 0)
    throw ConfigError(fmt::format(
        "{}: has no end-of-document token, which --reset-position-ids, --reset-attention-mask and "
        "--eod-mask-loss look for; leave them out",
        name_of(config.tokenizer.tokenizer_type)));
}

GptDatasetConfig dataset_config(const Config& config, const DataSource& source) {
  const DatasetConfig& data = config.dataset;
  GptDatasetConfig options;
  options.identity = data_identity(config, source);
  options.sample.create_attention_mask = false;
  options.sample.reset_position_ids = data.reset_position_ids;
  options.sample.reset_attention_mask = data.reset_attention_mask;
  options.sample.eod_mask_loss = data.eod_mask_loss;
  options.sample.inter_document_masking = data.inter_document_masking;
  find_special_tokens(config, options.sample);
  options.cache = !data.mock_data || !data.path_to_cache.empty();
  options.cache_path = data.path_to_cache;
  options.threads = static_cast<int>(data.num_dataset_builder_threads);
  return options;
}

struct FimSetup {
  FimOptions options;
  TextCodec codec;
};

FimSetup fim_setup(const Config& config) {
  const DatasetConfig& data = config.dataset;
  const Tokenizer tokenizer = open_tokenizer(config.tokenizer);
  FimSetup fim{.codec = text_codec(tokenizer, adds_special_tokens(config.tokenizer))};
  fim.options.rate = data.fim_rate;
  fim.options.spm_rate = data.fim_spm_rate;
  fim.options.fragment_rate = data.fim_fragment_rate.value_or(0.5);
  fim.options.no_prefix = data.fim_no_prefix;
  fim.options.seed = static_cast<uint32_t>(data.random_seed);
  find_fim_tokens(tokenizer,
                  {.prefix = data.fim_prefix_token,
                   .middle = data.fim_middle_token,
                   .suffix = data.fim_suffix_token,
                   .pad = data.fim_pad_token,
                   .eod = data.fim_eod_token,
                   .split = data.fim_split_sample},
                  fim.options);
  return fim;
}

}  // namespace

bool has_indexed_data(const DatasetConfig& data) {
  return !data.data_path.empty() || !data.train_data_path.empty() || !data.valid_data_path.empty() ||
         !data.test_data_path.empty() || !data.data_args_path.empty() ||
         !data.per_split_data_args_path.empty();
}

RunData gpt_data(const Config& config) {
  const DatasetConfig& data = config.dataset;
  const DataSource source = data_source(config);
  const GptDatasetConfig options = dataset_config(config, source);
  std::shared_ptr<const SequenceStore> mock;
  if (data.mock_data) {
    const int64_t eod = options.sample.eod >= 0 ? options.sample.eod : config.model.vocab_size - 1;
    mock = std::make_shared<const MockSequences>(config.model.vocab_size, eod);
  }
  const auto open = [&](const std::string& prefix) {
    if (mock) return mock;
    return std::shared_ptr<const SequenceStore>(
        std::make_shared<IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = data.mmap_bin_files}));
  };
  // Nothing is evaluated on a share of the data that is less than a document.
  const auto is_empty = [](const SequenceStore& store, Split split, const std::array<double, 2>& ends) {
    return split != Split::train && split_range(ends, store.lengths().size()).size() == 0;
  };
  using Samples = std::optional<int64_t>;
  if (!data.fim_data)
    return run_data_of<GptDataset>(config, source,
                                   [&](const std::string& prefix, Split split, std::array<double, 2> ends,
                                       Samples samples) -> std::shared_ptr<const GptDataset> {
                                     auto store = open(prefix);
                                     if (is_empty(*store, split, ends)) return nullptr;
                                     return std::make_shared<const GptDataset>(std::move(store), options,
                                                                               split, ends, samples);
                                   });
  const FimSetup fim = fim_setup(config);
  return run_data_of<FimDataset>(
      config, source,
      [&](const std::string& prefix, Split split, std::array<double, 2> ends,
          Samples samples) -> std::shared_ptr<const FimDataset> {
        auto store = open(prefix);
        if (is_empty(*store, split, ends)) return nullptr;
        return std::make_shared<const FimDataset>(
            GptDataset(std::move(store), options, split, ends, samples, "GPTFIMDataset"), fim.options,
            fim.codec);
      });
}

}  // namespace megatron
