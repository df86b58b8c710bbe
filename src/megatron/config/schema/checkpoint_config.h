#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class NonPersistentType { none, global, local, in_memory };
constexpr auto names(NonPersistentType) { return std::array{"none", "global", "local", "in_memory"}; }
enum class LocalCheckpointAlgo { fully_parallel, atomic };
constexpr auto names(LocalCheckpointAlgo) { return std::array{"fully_parallel", "atomic"}; }
enum class CheckpointFormat { torch_dist, torch, torch_dcp, fsdp_dtensor, safetensors };
constexpr auto names(CheckpointFormat) {
  return std::array{"torch_dist", "torch", "torch_dcp", "fsdp_dtensor", "safetensors"};
}
enum class ConvertFormat { none, torch, torch_dist };
constexpr auto names(ConvertFormat) { return std::array{"none", "torch", "torch_dist"}; }
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
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/checkpoint.def"
#undef SETTING
};

template <>
const Schema& schema<CheckpointConfig>();

}  // namespace megatron
