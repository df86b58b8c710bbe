#include "megatron/training/run/load_places.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/bridge/megatron/checkpoint.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/config/config.h"
#include "megatron/config/resolve/model_settings.h"

namespace megatron {
namespace {

bool trains_from(CheckpointKind kind) {
  return kind == CheckpointKind::megatron || kind == CheckpointKind::torch_dist ||
         kind == CheckpointKind::torch;
}

LoadPlace of_step(const std::string& root, int64_t step) {
  const std::string path = root + "/" + iteration_name(step);
  const FoundCheckpoint found = recognise_checkpoint(path);
  if (!trains_from(found.kind))
    throw ConfigError(
        fmt::format("--ckpt-step {}: {} is no checkpoint; leave it out for the newest", step, path));
  return {found.kind, found.path, step};
}

// What a checkpoint says of it; where it is damaged, a load will tell.
std::optional<BaseCheckpoint> base_of(const std::string& path) try {
  return read_index(path).state.base;
} catch (const Error&) {
  return {};
}

}  // namespace

bool is_left_behind(const std::optional<BaseCheckpoint>& base, int64_t iteration, const std::string& root) {
  const std::optional<CheckpointPlace> tracked = latest_checkpoint(root);
  if (!tracked || iteration <= tracked->iteration) return false;
  if (!base) return false;  // it does not say
  const bool same = base->checksum.empty() || base->checksum == index_checksum(tracked->path);
  if (same && base->iteration == tracked->iteration) return false;
  if (base->iteration <= tracked->iteration) return true;
  return std::ranges::any_of(list_checkpoints(root), [&](const CheckpointPlace& place) {
    return place.iteration == base->iteration && index_checksum(place.path) == base->checksum;
  });
}

std::string non_persistent_folder(const CheckpointConfig& config, const std::string& root) {
  const std::string& given = config.non_persistent_global_ckpt_dir;
  return given.empty() ? root + "/non_persistent" : given;
}

LoadPlace named_place(const std::string& flag, const std::string& path) {
  const FoundCheckpoint found = recognise_checkpoint(path);
  if (found.kind == CheckpointKind::hugging_face)
    throw ConfigError(fmt::format("{} {}: it is a Hugging Face model; give --hf {}", flag, path, path));
  if (!trains_from(found.kind)) throw ConfigError(fmt::format("{} {}: there is no checkpoint", flag, path));
  return {found.kind, found.path, 0};
}

std::vector<LoadPlace> load_places(const CheckpointConfig& config) {
  const std::string& root = config.load;
  if (root.empty()) return {};
  if (config.ckpt_step) return {of_step(root, *config.ckpt_step)};
  std::vector<LoadPlace> places;
  for (const CheckpointPlace& place : resume_places(non_persistent_folder(config, root)))
    if (!is_left_behind(base_of(place.path), place.iteration, root))
      places.push_back({CheckpointKind::megatron, place.path, place.iteration, false});
  for (const CheckpointPlace& place : resume_places(root))
    places.push_back({CheckpointKind::megatron, place.path, place.iteration});
  std::ranges::stable_sort(places, std::ranges::greater{}, &LoadPlace::iteration);
  if (!places.empty()) return places;
  const CheckpointKind kind = recognise_checkpoint(root).kind;
  return kind == CheckpointKind::none ? places : std::vector{named_place("--load", root)};
}

bool has_own_experts(const Config& config, const LoadPlace& place) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  return config.model.moe_use_upcycling && !checkpoint.save.empty() && checkpoint.save != checkpoint.load &&
         place.path.starts_with(checkpoint.save + "/");
}

TensorSource open_place(const LoadPlace& place, bool verify, bool only_reader,
                        std::vector<std::string>& notes) {
  if (place.kind == CheckpointKind::megatron) return checkpoint_source(place.path, verify, only_reader);
  const auto opened = std::make_shared<const MegatronCheckpoint>(open_megatron(place.path));
  notes.insert(notes.end(), opened->notes.begin(), opened->notes.end());
  return megatron_source(opened);
}

namespace {

FoundCheckpoint checkpoint_in(const std::string& root, std::optional<int64_t> step) {
  return recognise_checkpoint(step ? root + "/" + iteration_name(*step) : root);
}

}  // namespace

Json checkpoint_layout_settings(const std::string& root, std::optional<int64_t> step) {
  const FoundCheckpoint found = checkpoint_in(root, step);
  if (!trains_from(found.kind)) return {};
  if (found.kind != CheckpointKind::megatron) {
    const MegatronCheckpoint opened = open_megatron(found.path);
    return opened.model ? layout_settings(opened.state.extra.at("megatron_lm").at("args")) : Json();
  }
  const Json config = read_index(found.path).state.config;
  const Json* model = config.is_object() ? config.find("model") : nullptr;
  return model ? layout_settings(*model) : Json();
}

Json checkpoint_model_settings(const std::string& root, std::optional<int64_t> step) {
  const FoundCheckpoint found = checkpoint_in(root, step);
  if (!trains_from(found.kind)) return {};
  if (found.kind != CheckpointKind::megatron) {
    const MegatronCheckpoint opened = open_megatron(found.path);
    return opened.model ? model_settings(*opened.model) : Json();
  }
  const Json config = read_index(found.path).state.config;
  const Json* model = config.is_object() ? config.find("model") : nullptr;
  return model ? model_settings(*model) : Json();
}

std::string places_to_text(const std::vector<LoadPlace>& places) {
  Json::Array list;
  for (const LoadPlace& place : places)
    list.push_back(Json::Array{static_cast<int>(place.kind), place.path, place.iteration, place.persistent,
                               place.local});
  return Json(std::move(list)).dump();
}

std::vector<LoadPlace> places_from_text(const std::string& text) {
  std::vector<LoadPlace> places;
  const Json list = Json::parse(text, "places of checkpoints");
  for (const Json& place : list.as_array())
    places.push_back({static_cast<CheckpointKind>(place[0].as_int()), place[1].as_string(), place[2].as_int(),
                      place[3].as_bool(), place[4].as_bool()});
  return places;
}

std::string other_sizes(const Json& saved, const Config& config) {
  const Json* model = saved.is_object() ? saved.find("model") : nullptr;
  if (!model || !model->is_object()) return "";
  const Json own = config.to_json().at("model");
  std::string text;
  for (const char* key : {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
                          "num_query_groups", "kv_channels", "num_moe_experts", "moe_ffn_hidden_size"})
    if (const Json* there = model->find(key); there && !(*there == own.at(key)))
      text += fmt::format("{}{} is {} there and {} here", text.empty() ? "" : ", ", key, there->dump(),
                          own.at(key).dump());
  return text;
}

}  // namespace megatron
