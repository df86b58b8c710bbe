#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace megatron {

// Configurations of ModelOpt that --export-quant-cfg takes: those whose scales follow the values.
enum class QuantCfg {
  FP8_DEFAULT_CFG,
  FP8_PER_CHANNEL_PER_TOKEN_CFG,
  INT8_DEFAULT_CFG,
  INT8_WEIGHT_ONLY_CFG,
  INT4_BLOCKWISE_WEIGHT_ONLY_CFG,
  NVFP4_DEFAULT_CFG
};
inline constexpr std::array kQuantCfgs{
    "FP8_DEFAULT_CFG",      "FP8_PER_CHANNEL_PER_TOKEN_CFG",  "INT8_DEFAULT_CFG",
    "INT8_WEIGHT_ONLY_CFG", "INT4_BLOCKWISE_WEIGHT_ONLY_CFG", "NVFP4_DEFAULT_CFG"};

inline std::optional<QuantCfg> quant_cfg(std::string_view name) {
  for (size_t i = 0; i < kQuantCfgs.size(); ++i)
    if (name == kQuantCfgs[i]) return static_cast<QuantCfg>(i);
  return {};
}

}  // namespace megatron
