#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

// What happens to blocks of finished requests that hold a prefix another request may begin with: they are
// freed as soon as no request uses them, or stay until their memory is needed, the longest unused first.
enum class PrefixEviction { ref_zero, lru };
constexpr auto names(PrefixEviction) { return std::array{"ref_zero", "lru"}; }

struct InferenceConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/inference.def"
#undef SETTING
};

}  // namespace megatron
