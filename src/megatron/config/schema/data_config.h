#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct DatasetConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/dataset.def"
#undef SETTING
};

template <>
const Schema& schema<DatasetConfig>();

}  // namespace megatron
