#include "megatron/tensor/storage.h"

#include "megatron/base/error.h"

namespace megatron {

Storage::Storage(std::shared_ptr<Allocator> allocator, size_t bytes, MemoryTag tag) {
  void* data = allocator->allocate(bytes, tag);
  block_ = new Block;
  block_->data = data;
  block_->bytes = bytes;
  block_->device = allocator->device();
  block_->tag = tag;
  block_->allocator = std::move(allocator);
}

Storage::Storage(void* data, size_t bytes, Device device, std::shared_ptr<void> owner) : block_(new Block) {
  block_->data = data;
  block_->bytes = bytes;
  block_->device = device;
  block_->owner = std::move(owner);
}

void Storage::free() const {
  if (!block_ || block_->freed) return;
  if (block_->allocator) block_->allocator->deallocate(block_->data, block_->bytes, block_->tag);
  block_->owner.reset();
  block_->data = nullptr;
  block_->freed = true;
}

void Storage::restore() const {
  if (!block_ || !block_->freed) return;
  require(block_->allocator != nullptr, "storage: memory that was owned elsewhere cannot be restored");
  block_->data = block_->allocator->allocate(block_->bytes, block_->tag);
  block_->freed = false;
}

void Storage::destroy(Block* block) {
  if (block->allocator && !block->freed) block->allocator->deallocate(block->data, block->bytes, block->tag);
  delete block;
}

}  // namespace megatron
