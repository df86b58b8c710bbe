#include "megatron/inference/model_source.h"

#include <filesystem>

#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/source_files.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/training/setup/checkpoint_tensors.h"

namespace megatron {
namespace fs = std::filesystem;

ModelSource ModelSource::hugging_face(const std::string& directory) {
  ModelSource source;
  source.bridge_ = std::make_shared<const AutoBridge>(directory);
  source.path_ = directory;
  if (const VisionConfig* vision = source.bridge_->vision_config()) source.vision_ = *vision;
  return source;
}

ModelSource ModelSource::checkpoint(const std::string& path) {
  ModelSource source;
  source.path_ = resolve_checkpoint(path);
  // A tower is described by the files that came with the model.
  const std::string kept = source.path_ + "/" + std::string(kSourceFolder);
  if (fs::exists(kept + "config.json")) {
    const HfConfig config = HfConfig::read(kept);
    source.vision_ = FamilyModel(find_family(config.architecture()), {config, {}}).vision;
  }
  return source;
}

ModelSource ModelSource::open(const std::string& path) {
  if (fs::exists(path + "/config.json")) return hugging_face(path);
  if (fs::exists(path + "/index.json") || latest_checkpoint(path)) return checkpoint(path);
  throw ConfigError(
      fmt::format("{}: neither a Hugging Face model (config.json) nor a checkpoint of ours is there", path));
}

std::vector<std::string> ModelSource::notes() const {
  return bridge_ ? bridge_->notes() : std::vector<std::string>{};
}

Json ModelSource::model_settings() const {
  if (bridge_) return megatron::model_settings(bridge_->model_config());
  // What a checkpoint keeps as `model` also says how the run was laid out, which is no matter of its own.
  const Json saved = read_index(path_).state.config;
  const Json* model = saved.find("model");
  if (!model) throw ConfigError(fmt::format("{}: the checkpoint does not say what model it holds", path_));
  return megatron::model_settings(*model);
}

std::string ModelSource::described_in() const {
  return bridge_ ? path_ + "/" : path_ + "/" + std::string(kSourceFolder);
}

Json ModelSource::described(const char* key) const {
  const std::string folder = described_in();
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!fs::exists(folder + name)) continue;
    const Json file = Json::read(folder + name);
    if (const Json* value = file.find(key); value && !value->is_null()) return *value;
  }
  return {};
}

std::vector<int64_t> ModelSource::end_tokens() const {
  const Json value = described("eos_token_id");
  if (value.is_null()) return {};
  if (!value.is_array()) return {value.as_int()};
  std::vector<int64_t> tokens;
  for (const Json& token : value.as_array()) tokens.push_back(token.as_int());
  return tokens;
}

double ModelSource::repetition_penalty() const {
  const std::string path = described_in() + "generation_config.json";
  if (!fs::exists(path)) return 1;
  const Json file = Json::read(path);
  const Json* value = file.find("repetition_penalty");
  return value && !value->is_null() ? value->as_double() : 1;
}

std::string ModelSource::tokenizer_folder() const {
  const std::string folder = described_in();
  return fs::exists(folder + "tokenizer.json") ? folder : "";
}

int64_t ModelSource::start_token() const {
  const Json value = described("decoder_start_token_id");
  return value.is_null() ? 0 : value.as_int();
}

void ModelSource::load(RankContext& ctx, std::span<Parameter* const> parameters, DType dtype) const {
  for (Parameter* parameter : parameters) parameter->allocate(ctx, dtype);
  if (bridge_) return bridge_->load(ctx, parameters);
  CheckpointReader(path_).load(ctx, checkpoint_tensors(parameters));
}

}  // namespace megatron
