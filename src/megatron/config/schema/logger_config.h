#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

// What of the ranks' times is printed.
enum class TimingLogOption { max, minmax, all };
constexpr auto names(TimingLogOption) { return std::array{"max", "minmax", "all"}; }

struct LoggerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/logger.def"
#undef SETTING
};

struct ProfilingConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/profiling.def"
#undef SETTING
};

}  // namespace megatron
