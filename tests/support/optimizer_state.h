#pragma once

#include "megatron/optimizer/optimizer.h"

namespace megatron::testing {

// What a checkpoint would hold of an optimizer's tensor: itself, or an fp32 copy of what is packed.
inline Tensor wide_values(RankContext& ctx, const OptimizerTensor& entry) {
  if (!entry.packed) return entry.tensor;
  Tensor wide = ctx.empty(entry.packed->values.shape(), DType::F32);
  entry.packed->read(ctx, 0, wide);
  return wide;
}

inline void set_values(RankContext& ctx, const OptimizerTensor& entry, const Tensor& wide) {
  if (entry.packed)
    entry.packed->write(ctx, 0, wide);
  else
    ctx.kernels->copy(ctx.kernel_context(), {wide, entry.tensor});
}

}  // namespace megatron::testing
