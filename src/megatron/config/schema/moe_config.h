#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RouterScore { softmax, sigmoid, sqrtsoftplus };
constexpr auto names(RouterScore) { return std::array{"softmax", "sigmoid", "sqrtsoftplus"}; }
enum class RouterDType { none, fp32, fp64 };
constexpr auto names(RouterDType) { return std::array{"none", "fp32", "fp64"}; }
enum class TokenDispatcher { allgather, alltoall, flex };
constexpr auto names(TokenDispatcher) { return std::array{"allgather", "alltoall", "flex"}; }
enum class TokenDropPolicy { probs, position };
constexpr auto names(TokenDropPolicy) { return std::array{"probs", "position"}; }

struct MoeConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/moe.def"
#undef SETTING
};

}  // namespace megatron
