#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "megatron/device/allocator.h"

namespace megatron {

// Memory shared by tensors that view it, counted by reference.
class Storage {
 public:
  Storage() = default;
  Storage(std::shared_ptr<Allocator> allocator, size_t bytes, MemoryTag tag);
  // Memory owned elsewhere (a mapped file, a caller's buffer), kept alive by `owner`.
  Storage(void* data, size_t bytes, Device device, std::shared_ptr<void> owner);
  Storage(const Storage& other) : block_(other.block_) {
    if (block_) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Storage(Storage&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Storage() {
    if (block_ && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(block_);
  }

  explicit operator bool() const { return block_ != nullptr; }
  void* data() const { return block_->data; }
  size_t bytes() const { return block_->bytes; }
  Device device() const { return block_->device; }
  // Nobody else sees this memory: it may be written anew. Of memory owned elsewhere that is not known.
  bool unique() const {
    return block_ && block_->allocator && block_->references.load(std::memory_order_acquire) == 1;
  }
  bool same(const Storage& other) const { return block_ == other.block_; }
  bool freed() const { return block_ && block_->freed; }
  void free() const;  // gives the memory back now, whoever still views it; reading it afterwards is an Error
  void restore() const;  // after free(): other memory of the same size, for all who view it

 private:
  struct Block {
    std::atomic<int> references{1};
    void* data = nullptr;
    size_t bytes = 0;
    Device device;
    MemoryTag tag = MemoryTag::Activation;
    bool freed = false;
    std::shared_ptr<Allocator> allocator;
    std::shared_ptr<void> owner;
  };
  static void destroy(Block* block);

  Block* block_ = nullptr;
};

}  // namespace megatron
