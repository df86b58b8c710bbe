#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class CheckpointFormat { torch_dist, torch, torch_dcp, fsdp_dtensor, safetensors };
constexpr auto names(CheckpointFormat) {
  return std::array{"torch_dist", "torch", "torch_dcp", "fsdp_dtensor", "safetensors"};
}

struct CheckpointConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/checkpoint.def"
#undef SETTING
};

}  // namespace megatron
