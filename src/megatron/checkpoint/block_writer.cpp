#include "megatron/checkpoint/block_writer.h"

#include <algorithm>
#include <chrono>

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

constexpr size_t kWriteBuffers = 8;
constexpr size_t kSmallFile = size_t{4} << 20;

// Copying into the page cache takes a core longer than a fast disk needs.
int writers() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 4); }

}  // namespace

BlockWriter::BlockWriter(SafetensorsWriter& file, std::shared_ptr<DeviceRuntime> device)
    : file_(file), device_(std::move(device)) {
  if (device_) pinned_ = make_host_allocator(device_);
  if (file.bytes() < kSmallFile) return;
  threads_.emplace_back([this] { sum_blocks(); });
  for (int i = 0; i < writers(); ++i) threads_.emplace_back([this] { write_blocks(); });
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

void BlockWriter::put(const Block& block) {
  if (threads_.empty()) {
    sum(block);
    write_out(block);
    if (block.buffer) free_.push_back(block.buffer);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  to_sum_.push_back(block);
  changed_.notify_all();
}

void BlockWriter::await(const Buffer& buffer) {
  while (buffer.arrived && !buffer.arrived->done())
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

void BlockWriter::sum(const Block& block) {
  if (block.buffer) await(*block.buffer);
  if (block.buffer && block.buffer->fill) {
    block.buffer->fill();
    block.buffer->fill = {};
  }
  file_.sum(block.item, block.begin, block.bytes);
}

void BlockWriter::write_out(const Block& block) { file_.put(block.item, block.begin, block.bytes); }

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
  }
}

void BlockWriter::sum_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !to_sum_.empty() || all_given_; });
    if (to_sum_.empty()) break;
    const Block block = to_sum_.front();
    to_sum_.pop_front();
    lock.unlock();
    guarded([&] { sum(block); });
    lock.lock();
    to_write_.push_back(block);
    changed_.notify_all();
  }
  all_summed_ = true;
  changed_.notify_all();
}

void BlockWriter::write_blocks() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !to_write_.empty() || all_summed_; });
    if (to_write_.empty()) return;
    const Block block = to_write_.front();
    to_write_.pop_front();
    lock.unlock();
    guarded([&] { write_out(block); });
    lock.lock();
    if (block.buffer) free_.push_back(block.buffer);
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
