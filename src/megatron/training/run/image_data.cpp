#include "megatron/training/run/image_data.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/refuse.h"
#include "megatron/datasets/images/image_rows.h"
#include "megatron/datasets/images/mock_images.h"
#include "megatron/datasets/images/packed_images.h"
#include "megatron/datasets/sft/sft_templates.h"
#include "megatron/training/run/data_splits.h"
#include "megatron/training/run/unlearned_rows.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

// The folder or file of preprocessor_config.json; "" or a folder without one: the tower's usual.
std::string processor_of(const Config& config) {
  if (const std::string& path = config.model.image_processor; !path.empty()) {
    require_input(std::filesystem::exists(path), "--image-processor {}: there is no such file or folder",
                  path);
    return path;
  }
  return config.tokenizer.tokenizer_model;
}

// Tokens of a sample, and of those that are packed together, at most.
int64_t longest_sample(const Config& config) {
  const DatasetConfig& data = config.dataset;
  const int64_t length = config.model.seq_length;
  return data.packing_buffer_size > 0 && data.packing_seq_length > 0
             ? std::min(length, data.packing_seq_length)
             : length;
}

std::shared_ptr<const ImageTextEncoder> encoder_of(const Config& config, const Tokenizer& tokenizer,
                                                   const Log& log) {
  const DatasetConfig& data = config.dataset;
  const chat::ChatTemplates templates = find_chat_templates(
      config.tokenizer.tokenizer_model, config.tokenizer.chat_template, config.tokenizer.metadata_path);
  SftEncoderOptions options;
  options.format = data.sft_format == SftDataFormat::chat                ? SftFormat::chat
                   : data.sft_format == SftDataFormat::prompt_completion ? SftFormat::prompt_completion
                                                                         : SftFormat::automatic;
  options.loss = data.answer_only_loss ? LossMode::assistant : LossMode::full;
  options.chat_template = chat_template_of(templates);
  options.special_tokens = templates.special_tokens;
  options.max_length = longest_sample(config) + 1;
  options.on_nothing_learned = unlearned_rows(log, longest_sample(config));
  return std::make_shared<const ImageTextEncoder>(tokenizer, std::move(options), config.model,
                                                  ImageProcessor::open(config.model, processor_of(config)));
}

std::vector<std::string> first_paths(const DatasetConfig& data) {
  for (const std::vector<std::string>* paths : {&data.data_path, &data.train_data_path})
    if (!paths->empty()) return *paths;
  return {};
}

}  // namespace

bool reads_images(const Config& config) {
  const DatasetConfig& data = config.dataset;
  if (!config.model.has_tower()) return false;
  if (data.mock_data || data.sft) return true;
  const std::vector<std::string> paths = first_paths(data);
  return std::any_of(paths.begin(), paths.end(), names_images);
}

RunData image_data(const Config& config, const Log& log) {
  const DatasetConfig& data = config.dataset;
  const DataSource source = data_source(config);
  const int64_t length = config.model.seq_length;
  int64_t pad = 0;
  std::shared_ptr<const ImageTextEncoder> encode;
  if (!data.mock_data) {
    const Tokenizer tokenizer = open_tokenizer(config.tokenizer);
    pad = sft_pad_of(tokenizer);
    encode = encoder_of(config, tokenizer, log);
  }
  const auto make = [&](const std::string& path, Split split, auto ends, auto samples) {
    const int64_t most = split == Split::train ? data.max_train_samples : 0;
    if (data.mock_data)
      return std::make_shared<const ImageRows>(
          mock_image_rows(config.model, config.model.vocab_size, length, data.random_seed), path, ends, most,
          samples);
    return std::make_shared<const ImageRows>(encoded_rows(open_images(path), encode), path, ends, most,
                                             samples);
  };
  if (data.packing_buffer_size > 0) {
    const int64_t context = config.parallel.context_parallel_size;
    const ImagePacking packing{.buffer = data.packing_buffer_size,
                               .length = length,
                               .most = longest_sample(config),
                               .multiple = context > 1 ? 2 * context : 1,
                               .pad = pad};
    const auto pack = [&](const std::string& path, Split split, auto ends, auto samples) {
      return std::make_shared<const PackedImageRows>(*make(path, split, ends, samples), packing, samples);
    };
    const auto to_packed = [&](Split split, std::shared_ptr<const BlendedDataset<PackedImageRows>> packs) {
      SampleOrder order = sample_order(config, split, packs->size());
      return packed_image_source([packs](int64_t i) { return packs->sample(i); }, std::move(order), packing,
                                 data.use_loss_scaling);
    };
    return run_data_of<PackedImageRows>(config, source, pack, to_packed);
  }
  const auto to_source = [&](Split split, std::shared_ptr<const BlendedDataset<ImageRows>> rows) {
    SampleOrder order = sample_order(config, split, rows->size());
    return image_source([rows](int64_t i) { return rows->sample(i); }, std::move(order), length, pad,
                        data.use_loss_scaling);
  };
  return run_data_of<ImageRows>(config, source, make, to_source);
}

}  // namespace megatron
