#include <cstdlib>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/huge_pages.h"
#include "megatron/device/cpu/cpu_runtime.h"

namespace megatron {
namespace {

constexpr size_t kCacheLine = 64;

class CpuRuntime final : public DeviceRuntime {
 public:
  Device device() const override { return kCpu; }

  void* acquire_memory(size_t bytes) override {
    size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
    void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    require(data != nullptr, "out of host memory: {} bytes were asked for", bytes);
    if (alignment == kHugePage) advise_huge_pages(data, bytes);
    return data;
  }
  void release_memory(void* data, size_t) override { std::free(data); }

  void copy_from_host(void* target, const void* source, size_t bytes, void*) override {
    std::memcpy(target, source, bytes);
  }
  void copy_to_host(void* target, const void* source, size_t bytes, void*) override {
    std::memcpy(target, source, bytes);
  }
};

// Hands out addresses that nothing may read, so that planning sees the same allocator behaviour as a real
// run.
class MetaRuntime final : public DeviceRuntime {
 public:
  Device device() const override { return kMeta; }
  void* acquire_memory(size_t bytes) override {
    void* data = reinterpret_cast<void*>(next_);
    next_ += (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    return data;
  }
  void release_memory(void*, size_t) override {}
  void copy_from_host(void*, const void*, size_t, void*) override {}
  void copy_to_host(void*, const void*, size_t, void*) override {
    fail("a meta tensor has a shape but no data: it cannot be copied to the host");
  }

 private:
  size_t next_ = size_t{1} << 40;
};

}  // namespace

std::shared_ptr<DeviceRuntime> make_cpu_runtime() { return std::make_shared<CpuRuntime>(); }
std::shared_ptr<DeviceRuntime> make_meta_runtime() { return std::make_shared<MetaRuntime>(); }

}  // namespace megatron
