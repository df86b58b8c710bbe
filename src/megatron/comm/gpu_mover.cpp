#include "megatron/comm/gpu_mover.h"

#include "megatron/kernels/gpu_memory.h"

namespace megatron {
namespace {

Combination combination(ReduceOp op) {
  constexpr Combination kinds[] = {Combination::Sum, Combination::Average, Combination::Maximum,
                                   Combination::Minimum};
  return kinds[static_cast<size_t>(op)];
}

}  // namespace

void GpuMover::copy(void* target, const void* source, size_t bytes) const {
  copy_on_gpu(stream_, target, source, bytes);
}

void GpuMover::reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                      std::span<void* const> outputs, int64_t n) const {
  combine_on_gpu(stream_, {combination(op), dtype, n, inputs, outputs});
}

}  // namespace megatron
