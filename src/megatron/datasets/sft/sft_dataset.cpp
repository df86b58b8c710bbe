#include "megatron/datasets/sft/sft_dataset.h"

#include "megatron/base/error.h"

namespace megatron {

GptSample pack_conversations(std::span<const EncodedConversation> conversations, const SftOptions& options) {
  const auto length = static_cast<size_t>(options.seq_length);
  std::vector<int64_t> tokens, targets, positions;
  GptSample sample;
  sample.cu_seqlens = {0};
  for (const EncodedConversation& conversation : conversations) {
    const size_t begin = tokens.size();
    tokens.insert(tokens.end(), conversation.tokens.begin(), conversation.tokens.end());
    targets.insert(targets.end(), conversation.targets.begin(), conversation.targets.end());
    if (options.context_parallel > 1) {
      const auto multiple = static_cast<size_t>(2 * options.context_parallel);
      const size_t padded = begin + (tokens.size() - begin + multiple - 1) / multiple * multiple;
      tokens.resize(padded, options.pad);
      targets.resize(padded, options.pad);
    }
    for (size_t i = begin; i < tokens.size(); ++i) positions.push_back(static_cast<int64_t>(i - begin));
    sample.cu_seqlens.push_back(static_cast<int32_t>(std::min(tokens.size(), length)));
    if (tokens.size() > length) break;
  }
  tokens.resize(length, options.pad);
  targets.resize(length, options.pad);
  targets.push_back(options.pad);  // behind the last token stands padding, also where the text was cut
  while (positions.size() < length) positions.push_back(positions.empty() ? 0 : positions.back() + 1);
  positions.resize(length);
  if (sample.cu_seqlens.size() == 1) sample.cu_seqlens.push_back(0);
  sample.cu_seqlens.back() = static_cast<int32_t>(length);
  for (size_t i = 1; i < sample.cu_seqlens.size(); ++i)
    sample.max_seqlen = std::max(sample.max_seqlen, sample.cu_seqlens[i] - sample.cu_seqlens[i - 1]);
  sample.cu_seqlens.resize(length + 1, static_cast<int32_t>(length));
  sample.tokens = std::move(tokens);
  sample.position_ids = std::move(positions);
  sample.labels.assign(targets.begin() + 1, targets.end());
  for (int64_t label : sample.labels)
    sample.loss_mask.push_back(label == options.pad || label == kIgnoredLabel ? 0.0f : 1.0f);
  return sample;
}

SftDataset::SftDataset(std::shared_ptr<const JsonRows> rows, SftOptions options, EncodeMessages encode,
                       std::array<double, 2> ends, std::optional<int64_t> num_samples)
    : rows_(std::move(rows)),
      options_(std::move(options)),
      encode_(std::move(encode)),
      range_(split_range(ends, rows_->size())) {
  if (options_.max_rows > 0) range_.end = std::min(range_.end, range_.begin + options_.max_rows);
  size_ = num_samples.value_or(range_.size());
  require(options_.seq_length > 0, "{}: sequence length {}, expected at least 1", rows_->path(),
          options_.seq_length);
  description_["class"] = "SFTDataset";
  description_["dataset_path"] = rows_->path();
  if (size_ > 0 && range_.size() == 0)
    throw ConfigError(fmt::format(
        "{}: --split leaves a part, of which {} samples are asked, without rows; give it a larger "
        "share, as in --split 90,10,0, or --eval-iters 0 with --split 1,0,0",
        rows_->path(), size_));
}

GptSample SftDataset::sample(int64_t i) const {
  require(i >= 0 && i < size_, "{}: sample {} of {}", rows_->path(), i, size_);
  const int64_t row = range_.begin + i % range_.size();
  const std::string origin = rows_->origin(row);
  std::vector<EncodedConversation> encoded;
  for (const auto& conversation : split_conversations(parse_messages(rows_->row(row), origin)))
    encoded.push_back(encode_conversation(conversation, options_.format, encode_, origin));
  return pack_conversations(encoded, options_);
}

}  // namespace megatron
