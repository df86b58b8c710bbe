#include "megatron/bridge/hf_settings.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/config/value.h"

namespace megatron {
namespace {

// What differs from the defaults, of the settings that this part of a configuration has.
template <class Part>
void add_settings(Part model, Json& settings) {
  Part defaults;
  for (const Setting& setting : schema<Part>().rows()) {
    const Json value = read_value(setting, &model);
    if (!(value == read_value(setting, &defaults))) settings[setting.key] = value;
  }
}

}  // namespace

Json hf_model_settings(const std::string& directory) {
  const AutoBridge bridge(directory);
  Json settings = Json::object();
  add_settings<ModelConfig>(bridge.model_config(), settings);
  add_settings<MoeConfig>(bridge.model_config(), settings);
  return settings;
}

}  // namespace megatron
