#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/device/runtime.h"

namespace megatron {

enum class MemoryTag : uint8_t { Parameter, Gradient, Optimizer, Activation, Communication, Workspace };
inline constexpr int kMemoryTags = 6;
std::string_view name_of(MemoryTag tag);

struct MemoryUse {
  size_t current = 0, peak = 0;
  uint64_t allocations = 0;
};

struct MemoryStatistics {
  std::array<MemoryUse, kMemoryTags> by_tag;
  MemoryUse total;
  size_t reserved = 0, peak_reserved = 0;  // taken from the device, in use or cached
  uint64_t device_allocations = 0;         // calls that reached the device; constant once a step repeats
  std::string table() const;
};

// Keeps freed blocks by size class and hands them out again, so that a repeating step never reaches the
// device. Blocks may be freed from any thread. On a GPU reuse is ordered by the rank's stream: work on
// another stream must be joined to it before the tensor goes.
class Allocator {
 public:
  explicit Allocator(std::shared_ptr<DeviceRuntime> runtime) : runtime_(std::move(runtime)) {}
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  Device device() const { return runtime_->device(); }
  void* allocate(size_t bytes, MemoryTag tag);
  void deallocate(void* data, size_t bytes, MemoryTag tag) noexcept;
  MemoryStatistics statistics() const;
  void reset_peaks();
  void trim();  // returns cached blocks to the device

  // While work is captured, no block goes back to the device: what was captured computes in them.
  void begin_capture();
  void abandon_capture();
  // The end of a CUDA graph: takes the blocks that are cached now out of use until the result goes.
  std::shared_ptr<void> set_aside();

  // The block really taken for a request: a size class at most an eighth above it.
  static size_t rounded(size_t bytes);

 private:
  using Blocks = std::unordered_map<size_t, std::vector<void*>>;

  void trim_locked();

  std::shared_ptr<DeviceRuntime> runtime_;
  mutable std::mutex mutex_;
  Blocks cached_;
  bool capturing_ = false;
  MemoryStatistics statistics_;
};

}  // namespace megatron
