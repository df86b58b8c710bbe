#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/base/checksum.h"
#include "megatron/base/error.h"
#include "megatron/device/stream.h"

namespace megatron {

// A block of a file, to be read.
struct ReadBlock {
  static constexpr size_t kBytes = size_t{8} << 20;

  size_t file = 0, offset = 0, bytes = 0;
  std::byte* target = nullptr;  // host memory that it is to be in; null: a buffer
  Checksum* sum = nullptr;      // goes on with the block, from its byte `sum_from` on
  size_t sum_from = 0;
  std::function<void()> summed = {};  // called then, on another thread; may throw
  // What is done with the block, by the caller's thread in the order of the blocks. Copies that it queues on
  // the stream may go on reading the block.
  std::function<void(const std::byte* data)> use = {};
};

// A file whose bytes the disk does not give, or that has fewer of them.
class UnreadableFile : public Error {
 public:
  using Error::Error;
};

// How files are read.
enum class ReadWay : uint8_t {
  cached,  // others read the same bytes, whom the page cache serves
  direct   // nobody else does: past the page cache (O_DIRECT), where the file system can and it has little
           // of the files
};

// Reads blocks of files: several threads read ahead, one makes checksums, and the caller's thread uses the
// blocks, all at once. A few buffers are in use, pinned for a GPU: three to six of up to 16 MiB, more than
// three within a twentieth of what is read. Few bytes are read by the caller's thread alone. An Error of any
// thread, such as an UnreadableFile, ends it.
void read_blocks(std::span<const std::string> files, std::span<const ReadBlock> blocks, const Stream& stream,
                 const std::shared_ptr<DeviceRuntime>& device, ReadWay way = ReadWay::cached);

}  // namespace megatron
