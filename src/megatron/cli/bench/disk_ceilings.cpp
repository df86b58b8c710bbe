#include "megatron/cli/bench/disk_ceilings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/huge_pages.h"
#include "megatron/base/median.h"
#include "megatron/base/seconds_since.h"

namespace megatron {
namespace {

constexpr size_t kBlock = size_t{16} << 20;

constexpr size_t kAlignment = 4096;  // of what passes the page cache by

// Memory for a block, which the disk may read itself; of huge pages, as that of saves and loads is.
class Block {
 public:
  Block() {
    for (size_t i = 0; i < kBlock; ++i) data()[i] = static_cast<char>(i * 2654435761u >> 13);
  }
  char* data() { return reinterpret_cast<char*>(memory_.get()); }

 private:
  HugePages memory_ = make_huge_pages(kBlock);
};

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags, 0644)) {
    check(fd_ >= 0);
  }
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;

  // As a save does: with room reserved, and past the page cache where `direct`.
  void write_all(size_t bytes, bool direct) {
    (void)fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
    if (direct) check(fcntl(fd_, F_SETFL, O_DIRECT) == 0);
    Block block;
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = write(fd_, block.data(), std::min(kBlock, bytes - done));
      check(count > 0);
      done += static_cast<size_t>(count);
    }
    check(fsync(fd_) == 0);
  }
  void read_all(bool direct) {
    if (direct) check(fcntl(fd_, F_SETFL, O_DIRECT) == 0);
    Block block;
    ssize_t count = 0;
    while ((count = read(fd_, block.data(), kBlock)) > 0) {
    }
    check(count == 0);
  }
  bool can_be_direct() const { return fcntl(fd_, F_SETFL, O_DIRECT) == 0; }
  void forget() { posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  void check(bool fine) const {
    if (!fine) throw Error(fmt::format("bench ckpt: {}: {}", path_, std::strerror(errno)));
  }
  std::string path_;
  int fd_;
};

double seconds_of(int threads, const std::function<void(int)>& work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::exception_ptr> faults(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i)
    running.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        faults[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  for (std::thread& thread : running) thread.join();
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
  return seconds_since(start);
}

}  // namespace

DiskCeilings disk_ceilings(const std::string& folder, size_t bytes, int threads, int64_t passes) {
  const auto path = [&](int i) { return fmt::format("{}/ceiling-{}", folder, i); };
  constexpr int kNew = O_WRONLY | O_CREAT | O_TRUNC;
  const size_t each = std::max<size_t>(1, bytes / static_cast<size_t>(threads) / kAlignment) * kAlignment;
  const auto size = static_cast<double>(each) * threads;
  DiskCeilings ceilings;
  ceilings.direct = OpenFile(path(0), kNew).can_be_direct();
  const bool reads_direct = ceilings.direct && threads == 1;
  std::vector<double> write, read;
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int i = 0; i < threads; ++i) std::filesystem::remove(path(i));
    write.push_back(
        seconds_of(threads, [&](int i) { OpenFile(path(i), kNew).write_all(each, ceilings.direct); }));
    for (int i = 0; i < threads; ++i) OpenFile(path(i), O_RDONLY).forget();
    read.push_back(seconds_of(threads, [&](int i) { OpenFile(path(i), O_RDONLY).read_all(reads_direct); }));
  }
  for (int i = 0; i < threads; ++i) std::filesystem::remove(path(i));
  ceilings.write = size / median(write);
  ceilings.read = size / median(read);
  return ceilings;
}

void drop_cached(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) OpenFile(entry.path().string(), O_RDONLY).forget();
}

}  // namespace megatron
