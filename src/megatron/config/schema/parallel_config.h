#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class PipelineSchedule { automatic, gpipe, one_f_one_b, interleaved, zb_h1, zb_v };
constexpr auto names(PipelineSchedule) {
  return std::array{"auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
}

struct ParallelConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/parallel.def"
#undef SETTING
};

}  // namespace megatron
