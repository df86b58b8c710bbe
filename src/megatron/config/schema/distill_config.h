#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class TrainTarget { none, base, mtp, both };
constexpr auto names(TrainTarget) { return std::array{"none", "base", "mtp", "both"}; }

struct DistillConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/distill.def"
#undef SETTING

  bool has_teacher() const { return !export_kd_teacher_load.empty(); }
  bool records() const { return !logits_save_dir.empty(); }
  bool learns_from_recording() const { return !logits_load_dir.empty(); }
  bool rounds() const { return !export_quant_cfg.empty(); }
};

}  // namespace megatron
