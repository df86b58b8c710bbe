#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class CheckpointFormat { torch_dist, torch, torch_dcp, fsdp_dtensor, safetensors };
constexpr auto names(CheckpointFormat) {
  return std::array{"torch_dist", "torch", "torch_dcp", "fsdp_dtensor", "safetensors"};
}

// Where checkpoints are kept that the next one replaces.
enum class NonPersistentType { none, global, local, in_memory };
constexpr auto names(NonPersistentType) { return std::array{"none", "global", "local", "in_memory"}; }

// What a rank writes of a local checkpoint: its share of what replicas hold alike, or all that it holds.
enum class LocalCheckpointAlgo { fully_parallel, atomic };
constexpr auto names(LocalCheckpointAlgo) { return std::array{"fully_parallel", "atomic"}; }

// What a load does with tensors that only the checkpoint has (unexpected) or only the model (missing).
enum class Strictness {
  assume_ok_unexpected,
  log_unexpected,
  log_all,
  raise_unexpected,
  raise_all,
  return_unexpected,
  return_all,
  ignore_all
};
constexpr auto names(Strictness) {
  return std::array{"assume_ok_unexpected", "log_unexpected", "log_all",   "raise_unexpected", "raise_all",
                    "return_unexpected",    "return_all",     "ignore_all"};
}

struct CheckpointConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/checkpoint.def"
#undef SETTING
};

}  // namespace megatron
