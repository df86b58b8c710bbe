#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "megatron/base/huge_pages.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"

namespace megatron {

// Brings a file's tensors to the disk block by block: the caller copies blocks to host memory, some threads
// make what is packed whole, one makes checksums in the order of the blocks and gathers their bytes in blocks
// of the file, and others write these, past the page cache where they can, all at once. Whatever is not in
// host memory already passes through a few buffers, however large the file is. Small files are written by the
// caller's thread.
class BlockWriter {
 public:
  static constexpr size_t kBlockBytes = size_t{8} << 20;

  // Host memory for one block; pinned for a GPU.
  struct Buffer {
    Tensor block, source;             // source: what the block is made of
    std::optional<Event> arrived;     // a copy that the device has queued
    std::function<void()> fill = {};  // makes the block once that is there, on any thread
    std::byte* data() const { return static_cast<std::byte*>(block.raw()); }
  };

  // `device`: where blocks come from; null: the host.
  BlockWriter(SafetensorsWriter& file, std::shared_ptr<DeviceRuntime> device);
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;

  // A free buffer of at least these sizes; waits for one.
  Buffer& buffer(size_t block_bytes, size_t source_bytes = 0);
  // Bytes of an item from `begin` on, which stay in place until finish(); those of each item in their order.
  void write(size_t item, size_t begin, std::span<const std::byte> bytes);
  // The first `bytes` of a buffer's block.
  void write(size_t item, size_t begin, Buffer& buffer, size_t bytes);
  // Waits for all blocks; an Error where one could not be written.
  void finish();

 private:
  struct Block {
    size_t item, begin;
    std::span<const std::byte> bytes;
    Buffer* buffer;      // or null
    bool filled = true;  // its bytes are there
  };
  // A part of the file, which ends where a multiple of kBlockBytes does or where bytes do not follow.
  struct FileBlock {
    HugePages memory;
    size_t offset = 0, bytes = 0;
  };

  void put(Block block);
  void fill_blocks();
  void sum_blocks();
  void write_blocks(size_t own_blocks);
  static void await(const Buffer& buffer);  // until the device has copied into it
  static void fill(const Block& block);
  void gather(const Block& block);
  void gather(size_t offset, std::span<const std::byte> bytes);
  FileBlock& next_file_block(size_t offset);  // waits for a free one
  void pass_on();                             // what was gathered, to whoever writes
  void guarded(const std::function<void()>& work);
  void stop();

  SafetensorsWriter& file_;
  std::shared_ptr<DeviceRuntime> device_;
  std::shared_ptr<Allocator> pinned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> to_sum_;    // in their order, those that are yet to be filled too
  std::deque<Block*> to_fill_;  // of these
  std::deque<FileBlock*> to_write_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> free_;
  std::vector<std::unique_ptr<FileBlock>> file_blocks_;
  std::vector<FileBlock*> free_file_blocks_;
  FileBlock* gathered_ = nullptr;  // of the thread that makes checksums
  bool all_given_ = false, all_summed_ = false;
  std::exception_ptr error_;  // the first; nothing is written after it
  std::vector<std::thread> threads_;
};

}  // namespace megatron
