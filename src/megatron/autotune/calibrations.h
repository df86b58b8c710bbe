#pragma once

#include <string_view>

namespace megatron::autotune {

// The files of calibrations/, compiled in.
extern const std::string_view h100_calibration, a100_calibration;
// Times of ops on an H200, as `autotune profile-ops --grid` measured them.
extern const std::string_view h200_op_times, h200_moe_fp8_op_times;

}  // namespace megatron::autotune
