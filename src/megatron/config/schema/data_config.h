#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct DatasetConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/dataset.def"
#undef SETTING
};

}  // namespace megatron
