#include "megatron/bridge/hf_settings.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/config/resolve/model_settings.h"

namespace megatron {

Json hf_model_settings(const AutoBridge& bridge) {
  bridge.require_decoder("a training run");
  return model_settings(bridge.model_config());
}

Json read_hf_settings(const std::string& directory) { return hf_model_settings(AutoBridge(directory)); }

}  // namespace megatron
