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
  const std::array<int64_t, 7> others = {ids.bos, ids.eos, ids.eod, ids.unk, ids.cls, ids.sep, ids.mask};
  sample.eod = ids.eod;
  if (ids.pad >= 0) sample.pad = resolve_pad_id(ids.pad, others, config.dataset.allow_ambiguous_pad_tokens);
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
  auto tokenizer = std::make_shared<const Tokenizer>(open_tokenizer(config.tokenizer));
  const auto id = [&](const char* flag, const std::string& piece) -> int64_t {
    const auto found = tokenizer->id_of(piece);
    if (!found) throw ConfigError(fmt::format("{} '{}': the tokenizer has no such token", flag, piece));
    return *found;
  };
  FimSetup fim;
  fim.options = {.rate = data.fim_rate,
                 .spm_rate = data.fim_spm_rate,
                 .split_token = std::nullopt,
                 .fragment_rate = data.fim_fragment_rate.value_or(0.5),
                 .no_prefix = data.fim_no_prefix,
                 .prefix = id("--fim-prefix-token", data.fim_prefix_token),
                 .middle = id("--fim-middle-token", data.fim_middle_token),
                 .suffix = id("--fim-suffix-token", data.fim_suffix_token),
                 .pad = id("--fim-pad-token", data.fim_pad_token),
                 .eod = id("--fim-eod-token", data.fim_eod_token),
                 .seed = static_cast<uint32_t>(data.random_seed)};
  if (!data.fim_split_sample.empty())
    fim.options.split_token = id("--fim-split-sample", data.fim_split_sample);
  fim.codec.encode = [tokenizer](const std::string& text) {
    const std::vector<TokenId> ids = tokenizer->encode(text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  fim.codec.decode = [tokenizer](const std::vector<int64_t>& tokens) {
    return tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  };
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
  const auto open = [=, mmap = data.mmap_bin_files](const std::string& prefix, Split split, auto ends,
                                                    auto samples, std::string_view kind = "GPTDataset") {
    std::shared_ptr<const SequenceStore> store = mock;
    if (!store) store = std::make_shared<IndexedDataset>(prefix, IndexedDatasetOptions{.mmap = mmap});
    return GptDataset(std::move(store), options, split, ends, samples, kind);
  };
  if (!data.fim_data)
    return run_data_of<GptDataset>(
        config, source, [=](const std::string& prefix, Split split, auto ends, auto samples) {
          return std::make_shared<const GptDataset>(open(prefix, split, ends, samples));
        });
  const FimSetup fim = fim_setup(config);
  return run_data_of<FimDataset>(
      config, source, [=](const std::string& prefix, Split split, auto ends, auto samples) {
        return std::make_shared<const FimDataset>(open(prefix, split, ends, samples, "GPTFIMDataset"),
                                                  fim.options, fim.codec);
      });
}

}  // namespace megatron
