#pragma once

#include <cstdint>

namespace megatron::limits {

inline constexpr int64_t kGridRows = 65535;           // blocks of a launch in its second and third dimension
inline constexpr int64_t kTileRows = 64 * kGridRows;  // of matrices in tiles, which are as high or higher

}  // namespace megatron::limits
