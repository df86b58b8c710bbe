#include "megatron/training/run/sft_data.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/datasets/sft/packed_batches.h"
#include "megatron/datasets/sft/sft_rows.h"
#include "megatron/datasets/sft/sft_templates.h"
#include "megatron/training/run/data_splits.h"
#include "megatron/training/run/gpt_data.h"
#include "megatron/training/run/unlearned_rows.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

// What all SFT sets of a run share.
struct SftSetup {
  Tokenizer tokenizer;
  chat::ChatTemplates templates;
  int64_t pad = 0;
  int64_t multiple = 1, batch_multiple = 1;
};

SftSetup sft_setup(const Config& config) {
  SftSetup setup{open_tokenizer(config.tokenizer),
                 find_chat_templates(config.tokenizer.tokenizer_model, config.tokenizer.chat_template,
                                     config.tokenizer.metadata_path)};
  setup.pad = sft_pad_of(setup.tokenizer);
  const ParallelConfig& parallel = config.parallel;
  const int64_t context = parallel.context_parallel_size;
  setup.multiple = context > 1 ? 2 * context : 1;
  setup.batch_multiple = setup.multiple * parallel.tensor_model_parallel_size;
  return setup;
}

SftEncoder encoder_of(const Config& config, const SftSetup& setup, const Log& log) {
  const DatasetConfig& data = config.dataset;
  SftEncoderOptions options;
  options.format = data.sft_format == SftDataFormat::chat                ? SftFormat::chat
                   : data.sft_format == SftDataFormat::prompt_completion ? SftFormat::prompt_completion
                                                                         : SftFormat::automatic;
  options.loss = data.answer_only_loss ? LossMode::assistant : LossMode::full;
  options.chat_template = chat_template_of(setup.templates);
  options.special_tokens = setup.templates.special_tokens;
  options.max_length = config.model.seq_length + 1;
  options.on_nothing_learned = unlearned_rows(log, config.model.seq_length);
  return make_sft_encoder(setup.tokenizer, std::move(options));
}

// Megatron-LM's own dataset, in one of its prompt formats.
RunData megatron_sft(const Config& config, const DataSource& source, const SftSetup& setup) {
  MegatronSftFormat format =
      megatron_sft_format(config.dataset.sft_tokenizer_prompt_format, setup.tokenizer, setup.templates,
                          config.model.seq_length, config.parallel.context_parallel_size);
  return run_data_of<SftDataset>(
      config, source, [&](const std::string& path, Split split, auto ends, auto samples) {
        format.options.max_rows = split == Split::train ? config.dataset.max_train_samples : 0;
        return std::make_shared<const SftDataset>(std::make_shared<const JsonRows>(path), format.options,
                                                  format.encode, ends, samples);
      });
}

// Samples of one file and split, packed offline. The training set's metadata is written where asked.
auto packed_rows(const Config& config, const SftSetup& setup, const SftEncoder& encode) {
  const DatasetConfig& data = config.dataset;
  const PackingOptions packing{.length = config.model.seq_length,
                               .multiple = setup.multiple,
                               .pad = setup.pad,
                               .seed = static_cast<uint32_t>(data.random_seed),
                               .threads = static_cast<int>(std::max<int64_t>(data.num_workers, 1))};
  return [=, metadata = data.packed_metadata, most = data.max_train_samples](
             const std::string& path, Split split, auto ends, auto samples) {
    if (path.ends_with(".parquet"))
      return std::make_shared<const PackedSftRows>(path, packing, ends, samples);
    const int64_t rows = split == Split::train ? most : 0;
    auto packed = std::make_shared<const PackedSftRows>(SftRows(path, encode, ends, rows, std::nullopt),
                                                        packing, samples);
    if (split == Split::train && !metadata.empty())
      write_file_atomically(metadata, Json(Json::Array{packed->metadata()}).dump(2));
    return packed;
  };
}

// Whether every name is that of a .bin and an .idx file, which hold tokens without roles.
bool holds_tokens(const DataSource& source) {
  std::vector<std::string> names;
  const auto add = [&](const std::optional<Blend>& blend) {
    if (blend) names.insert(names.end(), blend->prefixes.begin(), blend->prefixes.end());
  };
  add(source.blend);
  for (const auto& blend : source.per_split) add(blend);
  return !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return !std::filesystem::is_regular_file(name) && std::filesystem::is_regular_file(name + ".idx");
  });
}

}  // namespace

RunData sft_data(const Config& config, const Log& log) {
  const DatasetConfig& data = config.dataset;
  const DataSource source = data_source(config);
  if (holds_tokens(source)) {
    log.info("--sft: the data are documents of tokens, which have no roles: every token is learned");
    return gpt_data(config);
  }
  const SftSetup setup = sft_setup(config);
  if (!data.sft_tokenizer_prompt_format.empty()) return megatron_sft(config, source, setup);
  const SftEncoder encode = encoder_of(config, setup, log);
  if (data.packing == Packing::offline)
    return run_data_of<PackedSftRows>(config, source, packed_rows(config, setup, encode));
  const auto make = [encode, most = data.max_train_samples](const std::string& path, Split split, auto ends,
                                                            auto samples) {
    return std::make_shared<const SftRows>(path, encode, ends, split == Split::train ? most : 0, samples);
  };
  using Blended = std::shared_ptr<const BlendedDataset<SftRows>>;
  const auto to_source = [config, setup](Split split,
                                         const Blended& rows) -> std::shared_ptr<const BatchSource> {
    const int64_t length = config.model.seq_length, vocab_size = config.model.vocab_size, pad = setup.pad;
    SampleOrder order = sample_order(config, split, rows->size());
    if (config.dataset.packing == Packing::batch)
      return packed_batches([rows](int64_t i) { return rows->sample(i); }, std::move(order),
                            {.length = length,
                             .multiple = setup.multiple,
                             .batch_multiple = setup.batch_multiple,
                             .pad = pad,
                             .vocab_size = vocab_size});
    SampleReader reader{length, [=](int64_t i) { return unpacked_sample(rows->sample(i), length, pad); }};
    return gpt_source(std::move(reader), std::move(order), vocab_size);
  };
  return run_data_of<SftRows>(config, source, make, to_source);
}

}  // namespace megatron
