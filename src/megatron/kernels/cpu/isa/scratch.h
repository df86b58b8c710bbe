#pragma once

#include "megatron/device/kernel_context.h"

namespace megatron::cpu::MEGATRON_ISA {

// Memory for the time of one kernel; uninitialised.
template <class C>
class Scratch {
 public:
  Scratch(const KernelContext& ctx, int64_t count)
      : allocator_(ctx.workspace), bytes_(static_cast<size_t>(count) * sizeof(C)) {
    data_ = static_cast<C*>(allocator_.allocate(bytes_, MemoryTag::Workspace));
  }
  ~Scratch() { allocator_.deallocate(data_, bytes_, MemoryTag::Workspace); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  C* data() const { return data_; }

 private:
  Allocator& allocator_;
  size_t bytes_;
  C* data_;
};

}  // namespace megatron::cpu::MEGATRON_ISA
