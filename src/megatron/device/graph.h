#pragma once

#include <memory>
#include <utility>

#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"

namespace megatron {

// A captured CUDA graph and the memory pool that it computes in. Move-only.
class CudaGraph {
 public:
  // Records what `work` puts on the stream. Tensors that it reads and that are not its own must live as long
  // as the CUDA graph.
  template <class Work>
  CudaGraph(std::shared_ptr<DeviceRuntime> runtime, const Stream& stream, Allocator& allocator, Work&& work)
      : runtime_(std::move(runtime)) {
    runtime_->begin_capture(stream.native());
    allocator.begin_capture();
    try {
      work();
      native_ = runtime_->end_capture(stream.native());
    } catch (...) {
      runtime_->abandon_capture(stream.native());
      allocator.abandon_capture();
      throw;
    }
    memory_ = allocator.set_aside();
  }
  CudaGraph(CudaGraph&& other) noexcept
      : runtime_(std::move(other.runtime_)),
        native_(std::exchange(other.native_, nullptr)),
        memory_(std::move(other.memory_)) {}
  CudaGraph& operator=(CudaGraph&&) = delete;
  ~CudaGraph() {
    if (native_) runtime_->destroy_graph(native_);
  }

  void run(const Stream& stream) const { runtime_->launch_graph(native_, stream.native()); }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  void* native_ = nullptr;
  std::shared_ptr<void> memory_;
};

}  // namespace megatron
