#include "megatron/bridge/hf_settings.h"

#include "megatron/bridge/auto_bridge.h"
#include "megatron/config/model_settings.h"

namespace megatron {

Json hf_model_settings(const std::string& directory) {
  return model_settings(AutoBridge(directory).model_config());
}

}  // namespace megatron
