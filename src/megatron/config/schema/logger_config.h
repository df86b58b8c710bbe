#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct LoggerConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/logger.def"
#undef SETTING
};

template <>
const Schema& schema<LoggerConfig>();

struct ProfilingConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/profiling.def"
#undef SETTING
};

template <>
const Schema& schema<ProfilingConfig>();

}  // namespace megatron
