#include "megatron/checkpoint/block_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "megatron/checkpoint/host_tensor.h"
#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

constexpr size_t kReadBuffers = 8;
constexpr size_t kFewBytes = size_t{4} << 20;
constexpr size_t kAdvisedBytes = size_t{128} << 10;

// On few cores one: what the system reads ahead by itself, for one reader that goes on where it was, costs
// the processor less than what it is asked for.
int readers() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4); }

// The files, opened when they are needed; of one thread, since the system reads ahead by open file.
// `advises`: others read between, so that the system cannot know what comes next.
class OpenFiles {
 public:
  OpenFiles(std::span<const std::string> paths, bool advises) : paths_(paths), advises_(advises) {}
  ~OpenFiles() {
    for (const auto& [file, fd] : open_) ::close(fd);
  }
  OpenFiles(const OpenFiles&) = delete;

  void read(const ReadBlock& block, std::byte* data) {
    if (block.bytes == 0) return;  // only its callback runs
    const int fd = descriptor(block.file);
    // The disk gets all of the block at once. Else the system asks for a little, and for more when that is
    // used.
    if (advises_ && block.bytes > kAdvisedBytes)
      ::posix_fadvise(fd, static_cast<off_t>(block.offset), static_cast<off_t>(block.bytes),
                      POSIX_FADV_WILLNEED);
    for (size_t done = 0; done < block.bytes;) {
      const ssize_t count =
          ::pread(fd, data + done, block.bytes - done, static_cast<off_t>(block.offset + done));
      if (count < 0 && errno == EINTR) continue;
      require(count >= 0, "cannot read {}: {}", paths_[block.file], std::strerror(errno));
      require(count > 0, "{}: it ends before byte {}", paths_[block.file], block.offset + block.bytes);
      done += static_cast<size_t>(count);
    }
  }

 private:
  int descriptor(size_t file) {
    if (const auto found = open_.find(file); found != open_.end()) return found->second;
    const int fd = ::open(paths_[file].c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "cannot open {}: {}", paths_[file], std::strerror(errno));
    if (!advises_) ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);  // which doubles what is read ahead
    return open_[file] = fd;
  }

  std::span<const std::string> paths_;
  bool advises_;
  std::map<size_t, int> open_;
};

void add_up(const ReadBlock& block, const std::byte* data) {
  if (!block.sum) return;
  block.sum->update({data + block.sum_from, block.bytes - block.sum_from});
  if (block.summed) block.summed();
}

struct Buffer {
  Tensor memory;
  std::optional<Event> copied;  // the device has read it
};

// One call of read_blocks() with threads.
class Pipeline {
 public:
  Pipeline(std::span<const std::string> files, std::span<const ReadBlock> blocks, const Stream& stream,
           const std::shared_ptr<DeviceRuntime>& device)
      : files_(files),
        blocks_(blocks),
        stream_(stream),
        device_(device),
        data_(blocks.size()),
        state_(blocks.size(), State::waits) {
    if (device) pinned_ = make_host_allocator(device);
    size_t largest = 0;
    for (const ReadBlock& block : blocks)
      if (!block.target) largest = std::max(largest, block.bytes);
    for (size_t i = 0; i < kReadBuffers && largest > 0; ++i) {
      const Shape shape{static_cast<int64_t>(largest)};
      buffers_.push_back(
          {pinned_ ? Tensor::empty(pinned_, shape, DType::U8) : host_tensor(shape, DType::U8), {}});
      free_.push_back(i);
    }
    threads_.emplace_back([this] { guarded([&] { sum(); }); });
    for (int i = 0; i < readers(); ++i) threads_.emplace_back([this] { guarded([&] { read(); }); });
  }
  ~Pipeline() {
    fail_with(std::make_exception_ptr(Error("given up")));
    for (std::thread& thread : threads_) thread.join();
    if (device_) stream_.synchronize();  // before the buffers go
  }
  Pipeline(const Pipeline&) = delete;

  void use_all() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      await(i);
      if (blocks_[i].use) blocks_[i].use(data_[i]);
      release(i);
    }
  }

 private:
  enum class State : uint8_t { waits, loaded, summed };

  void fail_with(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }
  void guarded(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      fail_with(std::current_exception());
    }
  }

  static bool needs_buffer(const ReadBlock& block) { return block.bytes > 0 && !block.target; }

  // Blocks are taken in order, each with its buffer, so that the next one to be used always has one.
  void read() {
    OpenFiles files(files_, readers() > 1);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return error_ || next_ == blocks_.size() || !needs_buffer(blocks_[next_]) || !free_.empty();
      });
      if (error_ || next_ == blocks_.size()) return;
      const size_t i = next_++;
      data_[i] = blocks_[i].target;
      if (needs_buffer(blocks_[i])) {
        const size_t buffer = free_.back();
        free_.pop_back();
        owners_.emplace(i, buffer);
        data_[i] = static_cast<std::byte*>(buffers_[buffer].memory.raw());
      }
      lock.unlock();
      files.read(blocks_[i], data_[i]);
      lock.lock();
      state_[i] = State::loaded;
      changed_.notify_all();
    }
  }

  void sum() {
    std::unique_lock lock(mutex_);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      changed_.wait(lock, [&] { return error_ || state_[i] == State::loaded; });
      if (error_) return;
      lock.unlock();
      add_up(blocks_[i], data_[i]);
      lock.lock();
      state_[i] = State::summed;
      changed_.notify_all();
    }
  }

  void await(size_t i) {
    std::unique_lock lock(mutex_);
    for (;;) {
      reclaim();
      if (error_) std::rethrow_exception(error_);
      if (state_[i] == State::summed) return;
      if (copying_.empty())
        changed_.wait(lock);
      else  // buffers come back without anybody telling
        changed_.wait_for(lock, std::chrono::microseconds(100));
    }
  }

  void release(size_t i) {
    const std::lock_guard lock(mutex_);
    const auto owned = owners_.find(i);
    if (owned == owners_.end()) return;
    Buffer& buffer = buffers_[owned->second];
    if (device_) {
      if (!buffer.copied) buffer.copied.emplace(device_);
      buffer.copied->record(stream_);
      copying_.push_back(owned->second);
    } else {
      free_.push_back(owned->second);
      changed_.notify_all();
    }
    owners_.erase(owned);
  }

  void reclaim() {  // the mutex is held
    while (!copying_.empty() && buffers_[copying_.front()].copied->done()) {
      free_.push_back(copying_.front());
      copying_.pop_front();
      changed_.notify_all();
    }
  }

  std::span<const std::string> files_;
  std::span<const ReadBlock> blocks_;
  const Stream& stream_;
  std::shared_ptr<DeviceRuntime> device_;
  std::shared_ptr<Allocator> pinned_;
  std::vector<Buffer> buffers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;  // to be read
  std::vector<std::byte*> data_;
  std::vector<State> state_;
  std::map<size_t, size_t> owners_;  // the buffer of a block
  std::vector<size_t> free_;
  std::deque<size_t> copying_;  // to the device
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace

void read_blocks(std::span<const std::string> files, std::span<const ReadBlock> blocks, const Stream& stream,
                 const std::shared_ptr<DeviceRuntime>& device) {
  size_t total = 0;
  for (const ReadBlock& block : blocks) total += block.bytes;
  if (total > kFewBytes) return Pipeline(files, blocks, stream, device).use_all();
  OpenFiles open(files, true);
  std::vector<std::byte> buffer;
  for (const ReadBlock& block : blocks) {
    if (!block.target) buffer.resize(std::max(buffer.size(), block.bytes));
    std::byte* const data = block.target ? block.target : buffer.data();
    open.read(block, data);
    add_up(block, data);
    if (block.use) block.use(data);
    if (device && block.use) stream.synchronize();  // the buffer is used again
  }
}

}  // namespace megatron
