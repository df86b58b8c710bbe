#pragma once

#include "megatron/optimizer/packed_state.h"

namespace megatron {

// A tensor of an optimizer's state in fp16 or fp8 (e4m3), of one scale. The scale is a power of two that
// brings the largest magnitude into the format's upper octave, so that small states do not vanish: reading is
// exact, and writing what was read changes no value.
class ScaledState {
 public:
  ScaledState() = default;                                         // undefined
  ScaledState(RankContext& ctx, const Shape& shape, DType dtype);  // zeros

  static bool needed(DType dtype) { return dtype == DType::F16 || is_fp8(dtype); }
  explicit operator bool() const { return static_cast<bool>(values_); }
  int64_t bytes() const { return static_cast<int64_t>(values_.bytes()); }

  Tensor read(RankContext& ctx) const;  // an fp32 copy
  PackedState packed() const;           // for checkpoints: the same values
  void write(RankContext& ctx, const Tensor& wide) const;

 private:
  void find_scale(RankContext& ctx, const Tensor& row) const;

  Tensor values_;
  Tensor inverse_;  // fp32 [1, 1]: what fp8 values are multiplied by; fp16 ones lie a factor higher
};

}  // namespace megatron
