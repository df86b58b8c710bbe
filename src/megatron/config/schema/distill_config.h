#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

struct DistillConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/distill.def"
#undef SETTING

  bool has_teacher() const { return !export_kd_teacher_load.empty(); }
};

}  // namespace megatron
