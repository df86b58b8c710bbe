#pragma once

#include "megatron/device/allocator.h"
#include "megatron/device/cpu_pool.h"
#include "megatron/device/stream.h"

namespace megatron {

struct LaunchCheck;  // kernels/limits/launch_check.h

// What a kernel may use besides its arguments: where it runs, the CPU threads it may use, scratch memory.
struct KernelContext {
  const Stream& stream;
  CpuPool& pool;
  Allocator& workspace;
  bool batch_invariant = false;     // rows of a GEMM have the same bits however many there are (CPU)
  LaunchCheck* launches = nullptr;  // of the meta device: what GPUs would refuse
  // Kernels may start while those in front of them still run (PDL). Before they wait they read
  // GemmArgs::static_b, and where the blocks of a cache lie.
  bool pdl = false;
};

}  // namespace megatron
