#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RolloutGranularity { batch, group, rollout };
constexpr auto names(RolloutGranularity) { return std::array{"B", "G", "R"}; }
enum class KvCacheMode { persist, offload, recompute };
constexpr auto names(KvCacheMode) { return std::array{"persist", "offload", "recompute"}; }
enum class PackingAlgo { fifo, round_robin };
constexpr auto names(PackingAlgo) { return std::array{"fifo", "round-robin"}; }
enum class RefitMethod { gloo, nccl, nvshmem };
constexpr auto names(RefitMethod) { return std::array{"gloo", "nccl", "nvshmem"}; }

struct RlConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rl.def"
#undef SETTING
};

template <>
const Schema& schema<RlConfig>();

}  // namespace megatron
