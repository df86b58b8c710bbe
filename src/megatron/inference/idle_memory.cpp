#include "megatron/inference/idle_memory.h"

#include "megatron/base/heap.h"

namespace megatron {

void IdleMemory::look(bool stepped) {
  constexpr int64_t kSteps = 64;  // at least: the step behind takes all of its blocks anew
  if (ctx_.device.is_cuda()) return;
  if (!stepped) {
    // Again after a while: clients that read slowly have let go of what they held.
    if (++idle_looks_ % 4 != 2) return;
    ctx_.allocator->trim();
    return_free_pages();
    return;
  }
  idle_looks_ = 0;
  if (++steps_ < kSteps) return;
  const MemoryStatistics statistics = ctx_.allocator->statistics();
  if (statistics.reserved - statistics.total.current <= static_cast<size_t>(most_)) return;
  ctx_.allocator->trim();
  steps_ = 0;
}

}  // namespace megatron
