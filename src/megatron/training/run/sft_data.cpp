#include "megatron/training/run/sft_data.h"

#include <filesystem>

#include "megatron/base/atomic_file.h"
#include "megatron/datasets/sft/packed_batches.h"
#include "megatron/datasets/sft/sft_dataset.h"
#include "megatron/datasets/sft/sft_rows.h"
#include "megatron/training/run/data_splits.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

// What all SFT sets of a run share.
struct SftSetup {
  Tokenizer tokenizer;
  chat::ChatTemplates templates;
  int64_t pad = 0;
  int64_t multiple = 1, batch_multiple = 1;

  // "" where neither the tokenizer nor the user has one.
  std::string chat_template() const { return templates.sources.empty() ? "" : templates.choose(); }
};

chat::ChatTemplates find_templates(const TokenizerConfig& config) {
  const fs::path model = config.tokenizer_model;
  const std::string folder = (fs::is_directory(model) ? model : model.parent_path()).string();
  chat::ChatTemplates templates;
  if (!folder.empty()) templates = chat::read_chat_templates(folder);
  if (!config.chat_template.empty()) {
    if (!fs::is_regular_file(config.chat_template))
      throw ConfigError(fmt::format("--chat-template {}: there is no such file", config.chat_template));
    templates.sources = chat::read_chat_templates(config.chat_template).sources;
  }
  return templates;
}

SftSetup sft_setup(const Config& config) {
  SftSetup setup{open_tokenizer(config.tokenizer), find_templates(config.tokenizer)};
  const SpecialIds ids = setup.tokenizer.special_ids();
  setup.pad = ids.pad >= 0 ? ids.pad : std::max<int64_t>(ids.eos, 0);
  const ParallelConfig& parallel = config.parallel;
  const int64_t context = parallel.context_parallel_size;
  setup.multiple = context > 1 ? 2 * context : 1;
  setup.batch_multiple = setup.multiple * parallel.tensor_model_parallel_size;
  return setup;
}

SftEncoder encoder_of(const Config& config, const SftSetup& setup) {
  const DatasetConfig& data = config.dataset;
  SftEncoderOptions options;
  options.format = data.sft_format == SftDataFormat::chat                ? SftFormat::chat
                   : data.sft_format == SftDataFormat::prompt_completion ? SftFormat::prompt_completion
                                                                         : SftFormat::automatic;
  options.loss = data.answer_only_loss ? LossMode::assistant : LossMode::full;
  options.chat_template = setup.chat_template();
  options.special_tokens = setup.templates.special_tokens;
  options.max_length = config.model.seq_length + 1;
  return make_sft_encoder(setup.tokenizer, std::move(options));
}

// Megatron-LM's own dataset, in one of its prompt formats.
RunData megatron_sft(const Config& config, const DataSource& source, const SftSetup& setup) {
  const PromptFormat& format = find_prompt_format(config.dataset.sft_tokenizer_prompt_format);
  SftOptions options{.seq_length = config.model.seq_length,
                     .pad = setup.pad,
                     .context_parallel = config.parallel.context_parallel_size,
                     .format = format};
  if (!format.pad_piece.empty()) {
    const auto pad = setup.tokenizer.id_of(format.pad_piece);
    if (!pad)
      throw ConfigError(fmt::format("--sft-tokenizer-prompt-format {}: the tokenizer has no token '{}'",
                                    format.name, format.pad_piece));
    options.pad = *pad;
  }
  const std::string text =
      format.chat_template.empty() ? setup.chat_template() : std::string(format.chat_template);
  if (text.empty())
    throw ConfigError(
        "--sft-tokenizer-prompt-format default: the tokenizer has no chat template; give "
        "--chat-template FILE");
  auto rendered = std::make_shared<const chat::ChatTemplate>(text);
  EncodeMessages encode = [rendered, setup](std::span<const ChatMessage> messages) {
    Json list = Json::array();
    for (const ChatMessage& message : messages)
      list.push_back(Json::Object{{"role", message.role}, {"content", message.content}});
    const Json names = chat::chat_names(setup.templates.special_tokens, Json::Object{{"messages", list}});
    const std::vector<TokenId> ids = setup.tokenizer.encode(rendered->render(names).text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  return run_data_of<SftDataset>(
      config, source, [=](const std::string& path, Split, auto ends, auto samples) {
        return std::make_shared<const SftDataset>(std::make_shared<const JsonRows>(path), options, encode,
                                                  ends, samples);
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

}  // namespace

RunData sft_data(const Config& config) {
  const DatasetConfig& data = config.dataset;
  const DataSource source = data_source(config);
  const SftSetup setup = sft_setup(config);
  if (!data.sft_tokenizer_prompt_format.empty()) return megatron_sft(config, source, setup);
  const SftEncoder encode = encoder_of(config, setup);
  if (data.packing == Packing::offline)
    return run_data_of<PackedSftRows>(config, source, packed_rows(config, setup, encode));
  const auto make = [encode, most = data.max_train_samples](const std::string& path, Split split, auto ends,
                                                            auto samples) {
    return std::make_shared<const SftRows>(path, encode, ends, split == Split::train ? most : 0, samples);
  };
  using Blended = std::shared_ptr<const BlendedDataset<SftRows>>;
  const auto to_source = [config, setup](const Blended& rows) -> std::shared_ptr<const BatchSource> {
    const int64_t length = config.model.seq_length, vocab_size = config.model.vocab_size, pad = setup.pad;
    SampleOrder order = sample_order(config, rows->size());
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
