#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class KvCacheQuant { none, fp8, fp8_affine, nvfp4, nvfp4_affine, nvfp4_rotate };
constexpr auto names(KvCacheQuant) {
  return std::array{"none", "fp8", "fp8_affine", "nvfp4", "nvfp4_affine", "nvfp4_rotate"};
}
enum class RealQuant { none, fp8_real_quant, fp8_blockwise_real_quant };
constexpr auto names(RealQuant) { return std::array{"none", "fp8_real_quant", "fp8_blockwise_real_quant"}; }
enum class QadTarget { none, base, mtp, both };
constexpr auto names(QadTarget) { return std::array{"none", "base", "mtp", "both"}; }
enum class ExportModel { gpt, hybrid, mamba };
constexpr auto names(ExportModel) { return std::array{"GPTModel", "HybridModel", "MambaModel"}; }

struct DistillConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/distill.def"
#undef SETTING
};

template <>
const Schema& schema<DistillConfig>();

}  // namespace megatron
