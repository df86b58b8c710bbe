#include "megatron/device/allocator.h"

#include <algorithm>
#include <bit>

#include "megatron/base/error.h"

namespace megatron {

std::string_view name_of(MemoryTag tag) {
  constexpr std::string_view names[] = {"param", "grad", "optim", "act", "comm", "workspace"};
  return names[static_cast<int>(tag)];
}

std::string MemoryStatistics::table() const {
  constexpr double mib = 1 << 20;
  std::string text = fmt::format("{:<10} {:>12} {:>12}\n", "memory", "now MiB", "peak MiB");
  for (int i = 0; i < kMemoryTags; ++i)
    if (by_tag[i].peak)
      text += fmt::format("{:<10} {:>12.1f} {:>12.1f}\n", name_of(static_cast<MemoryTag>(i)),
                          by_tag[i].current / mib, by_tag[i].peak / mib);
  text += fmt::format("{:<10} {:>12.1f} {:>12.1f}\n", "total", total.current / mib, total.peak / mib);
  return text + fmt::format("{:<10} {:>12.1f} {:>12.1f}\n", "reserved", reserved / mib, peak_reserved / mib);
}

Allocator::~Allocator() { trim_locked(); }

size_t Allocator::rounded(size_t bytes) {
  if (bytes <= 512) return std::max<size_t>(64, (bytes + 63) & ~size_t{63});
  // Eight classes per power of two, and none wider than 2 MiB: large blocks waste next to nothing.
  size_t step = std::min(std::bit_floor(bytes - 1) / 8, size_t{2} << 20);
  return (bytes + step - 1) / step * step;
}

void* Allocator::allocate(size_t bytes, MemoryTag tag) {
  if (bytes == 0) return nullptr;
  size_t block = rounded(bytes);
  std::lock_guard lock(mutex_);
  void* data = nullptr;
  if (auto& list = cached_[block]; !list.empty()) {
    data = list.back();
    list.pop_back();
  } else {
    try {
      data = runtime_->acquire_memory(block);
    } catch (const Error&) {  // blocks of other sizes may be what stands in the way
      if (capturing_) throw;
      trim_locked();
      data = runtime_->acquire_memory(block);
    }
    statistics_.reserved += block;
    statistics_.peak_reserved = std::max(statistics_.peak_reserved, statistics_.reserved);
    ++statistics_.device_allocations;
  }
  for (MemoryUse* use : {&statistics_.by_tag[static_cast<int>(tag)], &statistics_.total}) {
    use->current += block;
    use->peak = std::max(use->peak, use->current);
    ++use->allocations;
  }
  return data;
}

void Allocator::deallocate(void* data, size_t bytes, MemoryTag tag) noexcept {
  if (!data) return;
  size_t block = rounded(bytes);
  std::lock_guard lock(mutex_);
  cached_[block].push_back(data);
  statistics_.by_tag[static_cast<int>(tag)].current -= block;
  statistics_.total.current -= block;
}

MemoryStatistics Allocator::statistics() const {
  std::lock_guard lock(mutex_);
  return statistics_;
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (auto& use : statistics_.by_tag) use.peak = use.current;
  statistics_.total.peak = statistics_.total.current;
  statistics_.peak_reserved = statistics_.reserved;
}

void Allocator::trim() {
  std::lock_guard lock(mutex_);
  if (!capturing_) trim_locked();
}

void Allocator::begin_capture() {
  std::lock_guard lock(mutex_);
  capturing_ = true;
}

void Allocator::abandon_capture() {
  std::lock_guard lock(mutex_);
  capturing_ = false;
}

std::shared_ptr<void> Allocator::set_aside() {
  std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::shared_ptr<Blocks>(new Blocks(std::exchange(cached_, {})), [this](Blocks* blocks) {
    std::lock_guard again(mutex_);
    for (auto& [block, list] : *blocks) {
      auto& cached = cached_[block];
      cached.insert(cached.end(), list.begin(), list.end());
    }
    delete blocks;
  });
}

void Allocator::trim_locked() {
  for (auto& [block, list] : cached_) {
    for (void* data : list) runtime_->release_memory(data, block);
    statistics_.reserved -= block * list.size();
    list.clear();
  }
}

}  // namespace megatron
