#pragma once

#include "megatron/comm/data_movement.h"
#include "megatron/device/stream.h"

namespace megatron {

// Queues copies and reductions of GPU memory on a stream.
class GpuMover final : public Mover {
 public:
  explicit GpuMover(const Stream& stream) : stream_(stream) {}
  void copy(void* target, const void* source, size_t bytes) const override;
  void reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
              int64_t n) const override;

 private:
  const Stream& stream_;
};

}  // namespace megatron
