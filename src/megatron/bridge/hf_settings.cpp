#include "megatron/bridge/hf_settings.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/config/resolve/model_settings.h"

namespace megatron {

Json hf_model_settings(const AutoBridge& bridge) { return model_settings(bridge.model_config()); }

Json read_hf_settings(const std::string& directory) {
  if (holds_whole_safetensors(directory)) return hf_model_settings(AutoBridge(directory));
  const HfConfig config = HfConfig::read(directory);
  const FamilyModel model(find_family(config.architecture()), {config, {}});
  return model_settings(model.model);
}

}  // namespace megatron
