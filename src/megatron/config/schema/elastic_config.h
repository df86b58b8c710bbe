#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct ElasticConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/elastic.def"
#undef SETTING
};

}  // namespace megatron
