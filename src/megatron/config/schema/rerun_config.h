#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct RerunConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/rerun.def"
#undef SETTING
};

template <>
const Schema& schema<RerunConfig>();

}  // namespace megatron
