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

#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/huge_pages.h"
#include "megatron/device/host_memory.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

// As many as are filled, summed and used at once; more even out a slow disk, within this part of what is
// read: a load takes little memory beside the model's.
constexpr size_t kReadBuffers = 6, kFewestBuffers = 3, kReadPerBuffers = 20;
constexpr size_t kFewBytes = size_t{4} << 20;
constexpr size_t kAdvisedBytes = size_t{128} << 10;
constexpr size_t kSummedBytes = size_t{256} << 10;  // summed and copied while a core's cache has them
constexpr size_t kExtentBytes = 2 * ReadBlock::kBytes;
constexpr size_t kDirectUnit = AtomicFile::kBlockAlignment;  // of what passes the page cache by

size_t aligned_down(size_t bytes) { return bytes / kDirectUnit * kDirectUnit; }
size_t aligned_up(size_t bytes) { return aligned_down(bytes + kDirectUnit - 1); }

// Past the page cache a reader waits for the disk, and another one keeps that busy meanwhile. Else, on few
// cores, one: what the system reads ahead by itself, for one reader that goes on where it was, costs the
// processor less than what it is asked for.
int readers(ReadWay way) {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, way == ReadWay::direct ? 2 : 1,
                    4);
}

// The bytes of a file that are in the page cache; 0 where the system does not say.
size_t cached_bytes(const std::string& path) {
  constexpr long kCachestat = 451;  // on every architecture, from Linux 6.5 on
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct {
    uint64_t offset = 0, length = 0;  // all of it
  } range;
  struct {
    uint64_t cached = 0, dirty = 0, writeback = 0, evicted = 0, recently_evicted = 0;  // pages
  } found;
  const bool told = ::syscall(kCachestat, fd, &range, &found, 0) == 0;
  ::close(fd);
  return told ? found.cached * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

// Files that are mostly in memory are read from there.
ReadWay best_way(std::span<const std::string> files, std::span<const ReadBlock> blocks, ReadWay way) {
  if (way == ReadWay::cached) return way;
  std::map<size_t, size_t> read;
  for (const ReadBlock& block : blocks) read[block.file] += block.bytes;
  size_t total = 0, cached = 0;
  for (const auto& [file, bytes] : read) {
    total += bytes;
    if (bytes > 0) cached += cached_bytes(files[file]);
  }
  return 2 * cached > total ? ReadWay::cached : way;
}

// What one read brings: blocks that follow each other in a file, or one alone.
struct Extent {
  size_t file = 0, begin = 0, end = 0;  // bytes of the file
  size_t first = 0, last = 0;           // blocks; `last` is the first of the next extent

  // Whether a block may be read along, between whose bytes and these little lies.
  bool takes(const ReadBlock& block) const {
    if (block.bytes == 0) return true;  // only its callback runs
    if (begin == end) return false;
    return block.file == file && block.offset >= begin && block.offset <= end + kDirectUnit &&
           std::max(end, block.offset + block.bytes) - begin <= kExtentBytes;
  }
  size_t aligned_bytes() const { return aligned_up(end) - aligned_down(begin); }
};

std::vector<Extent> extents_of(std::span<const ReadBlock> blocks, ReadWay way) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const ReadBlock& block = blocks[i];
    if (extents.empty() || way != ReadWay::direct || !extents.back().takes(block))
      extents.push_back({block.file, block.offset, block.offset, i, i});
    extents.back().last = i + 1;
    if (block.bytes > 0) extents.back().end = std::max(extents.back().end, block.offset + block.bytes);
  }
  return extents;
}

// The files, opened when they are needed; of one thread, since the system reads ahead by open file.
// `advises`: others read between, so that the system cannot know what comes next.
class OpenFiles {
 public:
  OpenFiles(std::span<const std::string> paths, bool advises) : paths_(paths), advises_(advises) {}
  ~OpenFiles() {
    for (const auto* files : {&open_, &direct_})
      for (const auto& [file, fd] : *files)
        if (fd >= 0) ::close(fd);
  }
  OpenFiles(const OpenFiles&) = delete;

  void read(size_t file, size_t begin, size_t end, std::byte* data) {
    if (begin == end) return;  // a block without bytes names no file
    const int fd = descriptor(file);
    // The disk gets all of it at once. Else the system asks for a little, and for more when that is used.
    if (advises_ && end - begin > kAdvisedBytes)
      ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
    for (size_t at = begin; at < end;) {
      const ssize_t count = ::pread(fd, data + (at - begin), end - at, static_cast<off_t>(at));
      if (count < 0 && errno == EINTR) continue;
      at += checked(count, file, end);
    }
  }
  // Past the page cache, and so from the multiple of kDirectUnit on that `begin` is in or at; there `data`
  // begins, which has room for whole multiples.
  void read_direct(size_t file, size_t begin, size_t end, std::byte* data) {
    const size_t from = aligned_down(begin);
    const int fd = direct_descriptor(file);
    for (size_t at = from; at < end;) {
      // What a read has left within a multiple is its last, at the end of the file.
      const bool direct = fd >= 0 && at % kDirectUnit == 0;
      const ssize_t count =
          direct ? ::pread(fd, data + (at - from), aligned_up(end) - at, static_cast<off_t>(at)) : -1;
      if (count < 0 && direct && errno == EINTR) continue;
      // Other alignments may be asked for here, or memory of another kind. A broken disk tells again.
      if (count < 0) return read(file, at, end, data + (at - from));
      at += checked(count, file, end);
    }
  }

 private:
  size_t checked(ssize_t count, size_t file, size_t end) const {
    if (count < 0)
      throw UnreadableFile(fmt::format("cannot read {}: {}", paths_[file], std::strerror(errno)));
    if (count == 0) throw UnreadableFile(fmt::format("{}: it ends before byte {}", paths_[file], end));
    return static_cast<size_t>(count);
  }
  int descriptor(size_t file) {
    if (const auto found = open_.find(file); found != open_.end()) return found->second;
    const int fd = ::open(paths_[file].c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "cannot open {}: {}", paths_[file], std::strerror(errno));
    if (!advises_) ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);  // which doubles what is read ahead
    return open_[file] = fd;
  }
  int direct_descriptor(size_t file) {  // negative where there is none
    if (const auto found = direct_.find(file); found != direct_.end()) return found->second;
    return direct_[file] = ::open(paths_[file].c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  }

  std::span<const std::string> paths_;
  bool advises_;
  std::map<size_t, int> open_, direct_;
};

// Sums a block, and brings it where it is to be.
void add_up(const ReadBlock& block, const std::byte* data) {
  for (size_t at = 0; at < block.bytes; at += kSummedBytes) {
    const size_t end = std::min(at + kSummedBytes, block.bytes), from = std::max(at, block.sum_from);
    if (block.sum && from < end) block.sum->update({data + from, end - from});
    if (block.target && block.target != data) std::memcpy(block.target + at, data + at, end - at);
  }
  if (block.sum && block.summed) block.summed();
}

// Memory that an extent is read into. It begins at a multiple of kDirectUnit.
struct Buffer {
  Tensor pinned;  // for a GPU
  HugePages pages;
  std::byte* data = nullptr;
  std::optional<Event> copied = {};  // the device has read it
};

// One call of read_blocks() with threads.
class Pipeline {
 public:
  Pipeline(std::span<const std::string> files, std::span<const ReadBlock> blocks, const Stream& stream,
           const std::shared_ptr<DeviceRuntime>& device, ReadWay way)
      : files_(files),
        blocks_(blocks),
        stream_(stream),
        device_(device),
        way_(way),
        extents_(extents_of(blocks, way)),
        data_(extents_.size()),
        state_(extents_.size(), State::waits) {
    if (device) pinned_ = make_host_allocator(device);
    size_t largest = 0, count = 0, total = 0;
    for (const Extent& extent : extents_) {
      total += extent.end - extent.begin;
      if (!needs_buffer(extent)) continue;
      largest = std::max(largest, extent.aligned_bytes());
      ++count;
    }
    const size_t wanted =
        count == 0 ? 0 : std::clamp(total / kReadPerBuffers / largest, kFewestBuffers, kReadBuffers);
    for (size_t i = 0; i < std::min(wanted, count); ++i) {
      buffers_.push_back(make_buffer(largest));
      free_.push_back(i);
    }
    try {
      threads_.emplace_back([this] { guarded([&] { sum(); }); });
      for (int i = 0; i < readers(way); ++i) threads_.emplace_back([this] { guarded([&] { read(); }); });
    } catch (...) {  // the system gives no more threads
      stop();
      throw;
    }
  }
  ~Pipeline() {
    stop();
    try {
      if (device_) stream_.synchronize();  // before the buffers go
    } catch (...) {                        // a device that fails reads nothing any more
    }
  }
  Pipeline(const Pipeline&) = delete;

  void use_all() {
    for (size_t i = 0; i < extents_.size(); ++i) {
      await(i);
      for (size_t block = extents_[i].first; block < extents_[i].last; ++block)
        if (blocks_[block].use) blocks_[block].use(place_of(i, block));
      release(i);
    }
    if (device_) stream_.synchronize();
  }

 private:
  enum class State : uint8_t { waits, loaded, summed };

  void fail_with(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }
  void stop() {
    fail_with(std::make_exception_ptr(Error("given up")));
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void guarded(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      fail_with(std::current_exception());
    }
  }

  Buffer make_buffer(size_t bytes) const {
    Buffer buffer;
    if (!pinned_) {
      buffer.pages = make_huge_pages(bytes);
      buffer.data = buffer.pages.get();
      return buffer;
    }
    buffer.pinned = Tensor::empty(pinned_, {static_cast<int64_t>(bytes + kDirectUnit)}, DType::U8);
    buffer.data = static_cast<std::byte*>(buffer.pinned.raw());
    buffer.data +=
        aligned_up(reinterpret_cast<uintptr_t>(buffer.data)) - reinterpret_cast<uintptr_t>(buffer.data);
    return buffer;
  }

  // What is read through the page cache for a place of its own goes there at once.
  bool needs_buffer(const Extent& extent) const {
    return extent.begin < extent.end && (way_ == ReadWay::direct || !blocks_[extent.first].target);
  }
  // A block within its extent; null where it has no bytes, and so no place.
  const std::byte* place_of(size_t extent, size_t block) const {
    if (blocks_[block].bytes == 0) return nullptr;
    return data_[extent] ? data_[extent] + (blocks_[block].offset - extents_[extent].begin) : nullptr;
  }

  // Extents are taken in order, each with its buffer, so that the next one to be used always has one. Of
  // neighbours both read the multiple of kDirectUnit that they share, each into its own buffer.
  void read() {
    OpenFiles files(files_, readers(way_) > 1);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return error_ || next_ == extents_.size() || !needs_buffer(extents_[next_]) || !free_.empty();
      });
      if (error_ || next_ == extents_.size()) return;
      const size_t i = next_++;
      const Extent& extent = extents_[i];
      std::byte* data = blocks_[extent.first].target;
      if (needs_buffer(extent)) {
        const size_t buffer = free_.back();
        free_.pop_back();
        owners_.emplace(i, buffer);
        data = buffers_[buffer].data;
      }
      lock.unlock();
      const bool direct = way_ == ReadWay::direct;
      if (direct && extent.begin < extent.end)
        files.read_direct(extent.file, extent.begin, extent.end, data);
      else if (extent.begin < extent.end)
        files.read(extent.file, extent.begin, extent.end, data);
      lock.lock();
      data_[i] = data && direct ? data + (extent.begin - aligned_down(extent.begin)) : data;
      state_[i] = State::loaded;
      changed_.notify_all();
    }
  }

  void sum() {
    std::unique_lock lock(mutex_);
    for (size_t i = 0; i < extents_.size(); ++i) {
      changed_.wait(lock, [&] { return error_ || state_[i] == State::loaded; });
      if (error_) return;
      lock.unlock();
      for (size_t block = extents_[i].first; block < extents_[i].last; ++block)
        add_up(blocks_[block], place_of(i, block));
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
  ReadWay way_;
  std::shared_ptr<Allocator> pinned_;
  std::vector<Extent> extents_;
  std::vector<Buffer> buffers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;               // to be read
  std::vector<std::byte*> data_;  // of each extent: its first byte
  std::vector<State> state_;
  std::map<size_t, size_t> owners_;  // the buffer of an extent
  std::vector<size_t> free_;
  std::deque<size_t> copying_;  // to the device
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace

void read_blocks(std::span<const std::string> files, std::span<const ReadBlock> blocks, const Stream& stream,
                 const std::shared_ptr<DeviceRuntime>& device, ReadWay way) {
  size_t total = 0;
  for (const ReadBlock& block : blocks) total += block.bytes;
  if (total > kFewBytes)
    return Pipeline(files, blocks, stream, device, best_way(files, blocks, way)).use_all();
  OpenFiles open(files, true);
  std::vector<std::byte> buffer;
  for (const ReadBlock& block : blocks) {
    if (!block.target) buffer.resize(std::max(buffer.size(), block.bytes));
    std::byte* const data = block.target ? block.target : buffer.data();
    open.read(block.file, block.offset, block.offset + block.bytes, data);
    add_up(block, data);
    if (block.use) block.use(data);
    if (device && block.use) stream.synchronize();  // the buffer is used again
  }
}

}  // namespace megatron
