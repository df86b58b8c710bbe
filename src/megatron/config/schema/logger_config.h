#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

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
