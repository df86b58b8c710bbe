#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

// What becomes of the memory of keys and values while the model learns. No answer is under way then, so that
// offloaded and recomputed ones are both freed.
enum class KvCacheMode { persist, offload, recompute };
constexpr auto names(KvCacheMode) { return std::array{"persist", "offload", "recompute"}; }

struct RlConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rl.def"
#undef SETTING

  // Rollouts of a collection.
  int64_t rollouts() const { return grpo_prompts_per_step * grpo_group_size; }
  bool has_reference() const { return perform_rl_step && grpo_kl_beta > 0; }
};

}  // namespace megatron
