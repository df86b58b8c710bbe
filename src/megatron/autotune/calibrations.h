#pragma once

#include <string_view>

namespace megatron::autotune {

// The files of calibrations/, compiled in.
extern const std::string_view h100_calibration, a100_calibration;

}  // namespace megatron::autotune
