#pragma once

#include <algorithm>
#include <vector>

#include "megatron/device/runtime.h"

namespace megatron::testing {

// Hands out memory whose every element is not a number (of integers: −1), so that what a kernel reads before
// it was written shows in the results.
class PoisonedMemory : public DeviceRuntime {
 public:
  explicit PoisonedMemory(std::shared_ptr<DeviceRuntime> runtime)
      : runtime_(std::move(runtime)), stream_(runtime_->create_stream(0)) {}
  ~PoisonedMemory() override { runtime_->destroy_stream(stream_); }

  Device device() const override { return runtime_->device(); }
  void* acquire_memory(size_t bytes) override {
    auto* data = static_cast<std::byte*>(runtime_->acquire_memory(bytes));
    const std::vector<std::byte> poison(std::min(bytes, size_t{1} << 24), std::byte{0xff});
    for (size_t done = 0; done < bytes; done += poison.size())
      runtime_->copy_from_host(data + done, poison.data(), std::min(poison.size(), bytes - done), stream_);
    runtime_->synchronize(stream_);
    return data;
  }
  void release_memory(void* data, size_t bytes) override { runtime_->release_memory(data, bytes); }
  void copy_from_host(void* target, const void* source, size_t bytes, void* stream) override {
    runtime_->copy_from_host(target, source, bytes, stream);
  }
  void copy_to_host(void* target, const void* source, size_t bytes, void* stream) override {
    runtime_->copy_to_host(target, source, bytes, stream);
  }

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
  void* stream_;
};

}  // namespace megatron::testing
