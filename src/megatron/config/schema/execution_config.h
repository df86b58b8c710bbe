#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class RecomputeGranularity { none, full, selective };
constexpr auto names(RecomputeGranularity) { return std::array{"none", "full", "selective"}; }
enum class RecomputeMethod { none, uniform, block };
constexpr auto names(RecomputeMethod) { return std::array{"none", "uniform", "block"}; }
enum class GraphImpl { none, local, transformer_engine, full_iteration };
constexpr auto names(GraphImpl) {
  return std::array{"none", "local", "transformer_engine", "full_iteration"};
}

struct ExecutionConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/execution.def"
#undef SETTING
};

}  // namespace megatron
