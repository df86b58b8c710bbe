#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class ShardingStrategy { no_shard, optim, optim_grads, optim_grads_params };
constexpr auto names(ShardingStrategy) {
  return std::array{"no_shard", "optim", "optim_grads", "optim_grads_params"};
}

struct DdpConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/ddp.def"
#undef SETTING
};

struct DistConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/dist.def"
#undef SETTING
};

}  // namespace megatron
