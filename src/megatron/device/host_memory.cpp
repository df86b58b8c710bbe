#include "megatron/device/host_memory.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

// As a device of its own, so that an allocator can keep it.
class HostSide final : public DeviceRuntime {
 public:
  explicit HostSide(std::shared_ptr<DeviceRuntime> device) : device_(std::move(device)) {}
  Device device() const override { return kCpu; }
  void* acquire_memory(size_t bytes) override { return device_->acquire_host_memory(bytes); }
  void release_memory(void* data, size_t bytes) override { device_->release_host_memory(data, bytes); }
  void copy_from_host(void*, const void*, size_t, void*) override { fail("host memory is not copied to"); }
  void copy_to_host(void*, const void*, size_t, void*) override { fail("host memory is not copied from"); }

 private:
  std::shared_ptr<DeviceRuntime> device_;
};

}  // namespace

std::shared_ptr<Allocator> make_host_allocator(std::shared_ptr<DeviceRuntime> device) {
  return std::make_shared<Allocator>(std::make_shared<HostSide>(std::move(device)));
}

}  // namespace megatron
