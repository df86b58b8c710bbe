#include "megatron/bridge/hf_settings.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/config/value.h"

namespace megatron {

Json hf_model_settings(const std::string& directory) {
  const AutoBridge bridge(directory);
  ModelConfig model = bridge.model_config(), defaults;
  Json settings = Json::object();
  for (const Setting& setting : schema<ModelConfig>().rows()) {
    const Json value = read_value(setting, &model);
    if (!(value == read_value(setting, &defaults))) settings[setting.key] = value;
  }
  return settings;
}

}  // namespace megatron
