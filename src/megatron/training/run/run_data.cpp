#include "megatron/training/run/run_data.h"

#include <memory>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/file_and_key.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/datasets/prefetch.h"
#include "megatron/training/run/gpt_data.h"
#include "megatron/training/run/image_data.h"
#include "megatron/training/run/masked_data.h"
#include "megatron/training/run/routing_data.h"
#include "megatron/training/run/sft_data.h"

namespace megatron {
namespace {

int64_t token_at(std::string_view what, const Tensor& tensor, int64_t index, int64_t vocabulary) {
  const int64_t token = integer_at(what, tensor, index);
  if (token < 0 || token >= vocabulary)
    throw ConfigError(fmt::format("{}: token {} is not in the vocabulary of {}", what, token, vocabulary));
  return token;
}

}  // namespace

int64_t integer_at(std::string_view what, const Tensor& tensor, int64_t index) {
  switch (tensor.dtype()) {
    case DType::I64:
      return tensor.data<int64_t>()[index];
    case DType::I32:
      return tensor.data<int32_t>()[index];
    case DType::I16:
      return tensor.data<int16_t>()[index];
    case DType::U8:
      return tensor.data<uint8_t>()[index];
    default:
      throw ConfigError(fmt::format("{}: the tensor is {}, not whole numbers", what, tensor.dtype()));
  }
}

GivenTokens read_tokens(std::string_view what, const std::string& source, int64_t vocabulary) {
  auto [path, key] = file_and_key(source);
  const SafetensorsFile file(path);
  if (key.empty()) {
    const std::vector<std::string> names = file.names();
    if (names.size() != 1)
      throw ConfigError(fmt::format("{} {}: the file has {} tensors; name one as FILE.safetensors:KEY", what,
                                    source, names.size()));
    key = names[0];
  }
  const Tensor tensor = file.tensor(key);
  const std::string name = fmt::format("{} {}", what, source);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < tensor.numel(); ++i) tokens.push_back(token_at(name, tensor, i, vocabulary));
  if (tensor.rank() < 1 || tensor.rank() > 2 || tensor.numel() == 0)
    throw ConfigError(fmt::format("{}: the tensor is {}, not [batch, length]", name, tensor.shape()));
  return {tensor.rank() == 2 ? tensor.size(0) : 1, tensor.size(-1), std::move(tokens)};
}

void require_positions(std::string_view what, int64_t length, const ModelConfig& model) {
  const int64_t positions = model.max_position_embeddings;
  if (model.position_embedding_type != PositionEmbedding::learned_absolute || length <= positions) return;
  throw ConfigError(
      fmt::format("{}: a row has {} tokens, this model has learned positions for {}; use shorter rows", what,
                  length, positions));
}

RunData replayed_data(const std::string& source, const Config& config) {
  const auto [path, key] = file_and_key(source);
  if (key.empty()) throw ConfigError(fmt::format("--replay {}: write FILE.safetensors:KEY", source));
  auto file = std::make_shared<const SafetensorsFile>(path);
  const Tensor tensor = file->tensor(key);
  const int64_t batch = config.train.global_batch_size;
  if (tensor.rank() != 3 || tensor.size(2) < 2)
    throw ConfigError(fmt::format("--replay {}: the tensor is {}, not [iterations, global batch, length + 1]",
                                  source, tensor.shape()));
  if (tensor.size(1) != batch)
    throw ConfigError(fmt::format("--replay {}: its batches have {} rows; use --global-batch-size {}", source,
                                  tensor.size(1), tensor.size(1)));
  const int64_t vocab = config.model.vocab_size, row = tensor.size(2);
  require_positions("--replay " + source, row - 1, config.model);
  const auto take = [=, name = "--replay " + source](int64_t iteration, int64_t, int64_t index) {
    if (iteration >= tensor.size(0))
      throw ConfigError(
          fmt::format("{}: it has {} iterations, and another one is asked for", name, tensor.size(0)));
    std::vector<int64_t> tokens;
    const int64_t begin = (iteration * batch + index) * row;
    for (int64_t i = begin; i < begin + row; ++i) tokens.push_back(token_at(name, tensor, i, vocab));
    return tokens;
  };
  const int64_t samples = tensor.size(0) * batch;
  std::shared_ptr<const BatchSource> train = token_source(row - 1, samples, take);
  if (const std::string& routing = config.dataset.replay_routing; !routing.empty())
    train = with_routing(train, read_routing("--replay-routing", routing, samples * (row - 1), config.model),
                         batch);
  return {.train = std::move(train), .validation = {}, .test = {}, .iterations = tensor.size(0)};
}

int64_t evaluation_batch(const Config& config) {
  const int64_t own = config.validation.eval_global_batch_size;
  return own > 0 ? own : config.train.global_batch_size;
}

namespace {

// Tokens of the checkpoint that --load names; 0 where it does not say. Loading tells what is wrong with one
// that cannot be read.
int64_t checkpoint_vocabulary(const std::string& root) {
  if (root.empty() || !has_checkpoint(root)) return 0;
  try {
    const CheckpointReader reader(root);
    const Json& config = reader.state().config;
    const Json* model = config.is_object() ? config.find("model") : nullptr;
    const Json* tokens = model && model->is_object() ? model->find("vocab_size") : nullptr;
    return tokens && tokens->is_int() ? tokens->as_int() : 0;
  } catch (const Error&) {
    return 0;
  }
}

// A vocabulary that contradicts the checkpoint is told here, not as a tensor of another shape.
void check_checkpoint_vocabulary(const Config& config) {
  const std::string& root = config.checkpoint.load;
  const int64_t tokens = checkpoint_vocabulary(root);
  if (tokens == 0 || tokens == config.model.vocab_size) return;
  throw ConfigError(fmt::format(
      "--load {}: the checkpoint's vocabulary has {} tokens, the run's {}; use the tokenizer or --vocab-size "
      "that it was trained with",
      root, tokens, config.model.vocab_size));
}

RunData configured_data(const Config& config, const Log& log) {
  const DatasetConfig& data = config.dataset;
  if (!data.replay.empty()) return replayed_data(data.replay, config);
  if (reads_images(config)) return image_data(config, log);
  if (data.sft) return sft_data(config, log);
  if (config.model.masks_text() && (data.mock_data || has_indexed_data(data))) return masked_data(config);
  if (data.mock_data || has_indexed_data(data)) return gpt_data(config);
  throw ConfigError(
      "no data is given: use --data-path PREFIX, --mock-data, or --replay FILE.safetensors:KEY");
}

}  // namespace

namespace {

void check_vocabulary(const Config& config) {
  if (config.model.vocab_size == 0)
    throw ConfigError(
        "model.vocab_size: nothing says how many tokens the vocabulary has; give --vocab-size N, a tokenizer "
        "(--tokenizer-type), or --hf DIR");
  check_checkpoint_vocabulary(config);
}

}  // namespace

RunData no_data(const Config& config) {
  check_vocabulary(config);
  return {.train = token_source(config.model.seq_length, -1,
                                [](int64_t, int64_t, int64_t) -> std::vector<int64_t> {
                                  fail("training data: this run makes its own");
                                })};
}

RunData run_data(const Config& config, const Log& log) {
  check_vocabulary(config);
  RunData data = configured_data(config, log);
  constexpr int kStepsAhead = 2;
  data.train = prefetched(std::move(data.train), kStepsAhead, static_cast<int>(config.dataset.num_workers));
  return data;
}

}  // namespace megatron
