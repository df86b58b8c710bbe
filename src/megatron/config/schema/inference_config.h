#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class GraphSizes { exponential, linear };
constexpr auto names(GraphSizes) { return std::array{"exponential", "linear"}; }
enum class EvictionPolicy { ref_zero, lru };
constexpr auto names(EvictionPolicy) { return std::array{"ref_zero", "lru"}; }
enum class RoutingPolicy { longest_prefix, first_prefix_block, load_balanced };
constexpr auto names(RoutingPolicy) {
  return std::array{"longest_prefix", "first_prefix_block", "load_balanced"};
}
enum class LogprobsMode { raw_logprobs, processed_logprobs };
constexpr auto names(LogprobsMode) { return std::array{"raw_logprobs", "processed_logprobs"}; }

struct InferenceConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/inference.def"
#undef SETTING
};

template <>
const Schema& schema<InferenceConfig>();

}  // namespace megatron
