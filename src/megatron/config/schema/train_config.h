#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct TrainConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/train.def"
#undef SETTING
};

struct ValidationConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/validation.def"
#undef SETTING
};

}  // namespace megatron
