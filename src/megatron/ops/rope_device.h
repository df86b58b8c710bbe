#pragma once

#include "megatron/ops/rope.h"

namespace megatron::ops {

// Frequencies on the device, in the dtype of the tables: for tables that are made of them again and again.
struct DeviceFrequencies {
  Tensor inverse;
  double amplitude = 1;
};
DeviceFrequencies to_device(RankContext& ctx, const RopeFrequencies& frequencies, DType model_dtype);

// As those of ops/rope.h; nothing is copied to the device.
Rotation rope_tables(RankContext& ctx, const Tensor& positions, const DeviceFrequencies& frequencies,
                     bool interleaved = false, std::array<int64_t, 3> sections = {});

}  // namespace megatron::ops
