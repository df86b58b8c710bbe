#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct TrainConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/train.def"
#undef SETTING
};

template <>
const Schema& schema<TrainConfig>();

struct ValidationConfig {
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/validation.def"
#undef SETTING
};

template <>
const Schema& schema<ValidationConfig>();

}  // namespace megatron
