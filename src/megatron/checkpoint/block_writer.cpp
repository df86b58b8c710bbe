#include "megatron/checkpoint/block_writer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

constexpr size_t kWriteBuffers = 8;
constexpr size_t kFileBlocksOfAWriter = 3;          // one is written, one waits for that, one is gathered
constexpr size_t kCachedBytes = size_t{256} << 10;  // summed and gathered while a core's cache has them

// One block is on its way to the disk while another one is prepared; where the page cache cannot be passed
// by, copying into it takes a core longer than a fast disk needs.
int writers() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 4); }

// Unpacking takes a core longer than checksums do, and a GPU's host has many.
int fillers() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4); }

}  // namespace

BlockWriter::BlockWriter(SafetensorsWriter& file, std::shared_ptr<DeviceRuntime> device)
    : file_(file), device_(std::move(device)) {
  if (device_) pinned_ = make_host_allocator(device_);
  if (!file.is_large()) return;
  file.bypass_cache();
  try {
    threads_.emplace_back([this] { sum_blocks(); });
    for (int i = 0; i < writers(); ++i) threads_.emplace_back([this] { write_blocks(kFileBlocksOfAWriter); });
    for (int i = 0; i < fillers(); ++i) threads_.emplace_back([this] { fill_blocks(); });
  } catch (...) {  // the system gives no more threads
    stop();
    throw;
  }
}

BlockWriter::~BlockWriter() {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::make_exception_ptr(Error("given up"));
  }
  stop();
  for (const auto& buffer : buffers_) {
    try {
      await(*buffer);  // the device may still write into it
    } catch (...) {    // a device that fails writes nothing any more
    }
  }
}

BlockWriter::Buffer& BlockWriter::buffer(size_t block_bytes, size_t source_bytes) {
  std::unique_lock lock(mutex_);
  if (free_.empty() && buffers_.size() < kWriteBuffers) {
    buffers_.push_back(std::make_unique<Buffer>());
    free_.push_back(buffers_.back().get());
  }
  changed_.wait(lock, [&] { return !free_.empty() || error_; });
  if (error_) std::rethrow_exception(error_);
  Buffer& buffer = *free_.back();
  free_.pop_back();
  lock.unlock();
  const auto reserve = [&](Tensor& memory, size_t bytes) {
    if (bytes == 0 || (memory && memory.bytes() >= bytes)) return;
    memory = {};
    const Shape shape{static_cast<int64_t>(bytes)};
    memory = pinned_ ? Tensor::empty(pinned_, shape, DType::U8) : host_tensor(shape, DType::U8);
  };
  reserve(buffer.block, block_bytes);
  reserve(buffer.source, source_bytes);
  return buffer;
}

void BlockWriter::write(size_t item, size_t begin, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size(); done += kBlockBytes)
    put({item, begin + done, bytes.subspan(done, std::min(kBlockBytes, bytes.size() - done)), nullptr});
}

void BlockWriter::write(size_t item, size_t begin, Buffer& buffer, size_t bytes) {
  put({item, begin, {buffer.data(), bytes}, &buffer});
}

void BlockWriter::put(Block block) {
  if (threads_.empty()) {
    fill(block);
    file_.write_block(file_.take(block.item, block.begin, block.bytes), block.bytes);
    if (block.buffer) free_.push_back(block.buffer);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  block.filled = block.buffer == nullptr;
  to_sum_.push_back(block);
  if (!block.filled) to_fill_.push_back(&to_sum_.back());  // which stays in place until it is summed
  changed_.notify_all();
}

void BlockWriter::await(const Buffer& buffer) {
  while (buffer.arrived && !buffer.arrived->done())
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void BlockWriter::fill(const Block& block) {
  if (!block.buffer) return;
  await(*block.buffer);
  if (block.buffer->fill) block.buffer->fill();
  block.buffer->fill = {};
}

void BlockWriter::gather(const Block& block) {
  for (size_t done = 0; done < block.bytes.size(); done += kCachedBytes) {
    const auto part = block.bytes.subspan(done, std::min(kCachedBytes, block.bytes.size() - done));
    gather(file_.take(block.item, block.begin + done, part), part);
  }
}

void BlockWriter::gather(size_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (gathered_ && gathered_->offset + gathered_->bytes != offset) pass_on();
    if (!gathered_) gathered_ = &next_file_block(offset);
    const size_t count = std::min(bytes.size(), kBlockBytes - offset % kBlockBytes);
    std::memcpy(gathered_->memory.get() + gathered_->bytes, bytes.data(), count);
    gathered_->bytes += count;
    offset += count;
    bytes = bytes.subspan(count);
    if (offset % kBlockBytes == 0) pass_on();
  }
}

BlockWriter::FileBlock& BlockWriter::next_file_block(size_t offset) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_file_blocks_.empty() || error_; });
  if (error_) std::rethrow_exception(error_);
  FileBlock& block = *free_file_blocks_.back();
  free_file_blocks_.pop_back();
  block.offset = offset;
  block.bytes = 0;
  return block;
}

void BlockWriter::pass_on() {
  const std::lock_guard lock(mutex_);
  if (gathered_) to_write_.push_back(std::exchange(gathered_, nullptr));
  changed_.notify_all();
}

// After the first error blocks are passed on untouched, so that nobody waits for a buffer for ever.
void BlockWriter::guarded(const std::function<void()>& work) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
  }
  try {
    work();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

void BlockWriter::fill_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !to_fill_.empty() || all_given_; });
    if (to_fill_.empty()) return;
    Block* const block = to_fill_.front();
    to_fill_.pop_front();
    lock.unlock();
    guarded([&] { fill(*block); });
    lock.lock();
    block->filled = true;
    changed_.notify_all();
  }
}

void BlockWriter::sum_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return to_sum_.empty() ? all_given_ : to_sum_.front().filled; });
    if (to_sum_.empty()) break;
    const Block block = to_sum_.front();
    to_sum_.pop_front();
    lock.unlock();
    guarded([&] { gather(block); });
    lock.lock();
    if (block.buffer) free_.push_back(block.buffer);
    changed_.notify_all();
  }
  lock.unlock();
  pass_on();
  lock.lock();
  all_summed_ = true;
  changed_.notify_all();
}

// Each writer makes the pages of its blocks, so that the first ones are there soon.
void BlockWriter::write_blocks(size_t own_blocks) {
  for (size_t i = 0; i < own_blocks; ++i)
    guarded([&] {
      auto block = std::make_unique<FileBlock>(FileBlock{make_huge_pages(kBlockBytes, true)});
      const std::lock_guard lock(mutex_);
      free_file_blocks_.push_back(block.get());
      file_blocks_.push_back(std::move(block));
      changed_.notify_all();
    });
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !to_write_.empty() || all_summed_; });
    if (to_write_.empty()) return;
    FileBlock* const block = to_write_.front();
    to_write_.pop_front();
    lock.unlock();
    guarded([&] { file_.write_block(block->offset, {block->memory.get(), block->bytes}); });
    lock.lock();
    free_file_blocks_.push_back(block);
    changed_.notify_all();
  }
}

void BlockWriter::stop() {
  {
    const std::lock_guard lock(mutex_);
    all_given_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void BlockWriter::finish() {
  stop();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace megatron
