#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class PeftKind { none, lora, canonical_lora, dora };
constexpr auto names(PeftKind) { return std::array{"none", "lora", "canonical_lora", "dora"}; }
enum class DropoutPosition { pre, post };
constexpr auto names(DropoutPosition) { return std::array{"pre", "post"}; }

struct PeftConfig {
  PeftKind scheme = PeftKind::none;
  std::vector<std::string> target_modules;
  std::vector<std::string> exclude_modules;
  int64_t dim = 32;
  double alpha = 32;
  double dropout = 0;
  DropoutPosition dropout_position = DropoutPosition::pre;
  std::string lora_A_init_method = "xavier";
  std::string lora_B_init_method = "zero";
  bool normalize_moe_lora = false;
  bool share_expert_adapters = true;
  bool use_rslora = false;
};

template <>
const Schema& schema<PeftConfig>();

}  // namespace megatron
