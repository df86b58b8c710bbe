#pragma once

#include <memory>
#include <utility>

#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"

namespace megatron {

// Work that was recorded from a stream instead of run, and the memory that it computes in. Move-only.
class Recording {
 public:
  // Records what `work` puts on the stream. Tensors that it reads and that are not its own must live as long
  // as the recording.
  template <class Work>
  Recording(std::shared_ptr<DeviceRuntime> runtime, const Stream& stream, Allocator& allocator, Work&& work)
      : runtime_(std::move(runtime)) {
    runtime_->begin_recording(stream.native());
    allocator.begin_recording();
    try {
      work();
      native_ = runtime_->end_recording(stream.native());
    } catch (...) {
      runtime_->abandon_recording(stream.native());
      allocator.abandon_recording();
      throw;
    }
    memory_ = allocator.set_aside();
  }
  Recording(Recording&& other) noexcept
      : runtime_(std::move(other.runtime_)),
        native_(std::exchange(other.native_, nullptr)),
        memory_(std::move(other.memory_)) {}
  Recording& operator=(Recording&&) = delete;
  ~Recording() {
    if (native_) runtime_->destroy_recording(native_);
  }

  void run(const Stream& stream) const { runtime_->run_recording(native_, stream.native()); }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  void* native_ = nullptr;
  std::shared_ptr<void> memory_;
};

}  // namespace megatron
