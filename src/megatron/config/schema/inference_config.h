#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

// What happens to blocks of finished requests that hold a prefix another request may begin with: they are
// freed as soon as no request uses them, or stay until their memory is needed, the longest unused first.
enum class PrefixEviction { ref_zero, lru };
constexpr auto names(PrefixEviction) { return std::array{"ref_zero", "lru"}; }

// Whose log-probabilities are told: the model's own, or those of what a request draws from, behind its
// temperature, top-k and top-p.
enum class LogprobsMode { raw_logprobs, processed_logprobs };
constexpr auto names(LogprobsMode) { return std::array{"raw_logprobs", "processed_logprobs"}; }

struct InferenceConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/inference.def"
#undef SETTING
};

}  // namespace megatron
