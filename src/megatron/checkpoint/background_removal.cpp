#include "megatron/checkpoint/background_removal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include "megatron/checkpoint/directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kPartBytes = uintmax_t{64} << 20;

// A disk of this machine. On a mount from elsewhere the system's leases say nothing of other machines, and an
// object store may write what is left of a file that gets shorter once more.
bool is_local(int fd) {
  constexpr long kLocal[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
                             F2FS_SUPER_MAGIC, TMPFS_MAGIC,     OVERLAYFS_SUPER_MAGIC};
  struct statfs facts {};
  return ::fstatfs(fd, &facts) == 0 &&
         std::ranges::find(kLocal, static_cast<long>(facts.f_type)) != std::end(kLocal);
}

// Whether nobody else has a file open or mapped, who would miss what is cut off. The system grants a lease
// for writing in that case alone; where it knows of no leases, nobody can tell.
bool is_unused(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  ::fcntl(fd, F_SETSIG, SIGURG);  // which is ignored, should somebody open the file meanwhile
  const bool unused = is_local(fd) && ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
  if (unused) ::fcntl(fd, F_SETLEASE, F_UNLCK);
  ::close(fd);
  return unused;
}

}  // namespace

BackgroundRemoval::~BackgroundRemoval() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    paused_ = false;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundRemoval::add(std::vector<std::string> directories) {
  if (directories.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });  // throws before anything is queued
  for (std::string& directory : directories) directories_.push_back(std::move(directory));
  changed_.notify_all();
}

void BackgroundRemoval::pause() {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void BackgroundRemoval::resume() {
  const std::lock_guard lock(mutex_);
  paused_ = false;
  changed_.notify_all();
}

std::vector<std::string> BackgroundRemoval::pending() const {
  const std::lock_guard lock(mutex_);
  return {directories_.begin(), directories_.end()};
}

void BackgroundRemoval::finish() {
  std::unique_lock lock(mutex_);
  paused_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return directories_.empty(); });
}

void BackgroundRemoval::rethrow() {
  const std::lock_guard lock(mutex_);
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void BackgroundRemoval::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !directories_.empty() || ending_; });
    if (directories_.empty()) return;
    const std::string directory = directories_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      remove(directory);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    directories_.pop_front();
    changed_.notify_all();
  }
}

void BackgroundRemoval::remove(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (std::error_code other; !entry->is_symlink(other) && entry->is_regular_file(other))
      files.push_back(entry->path());
  for (const fs::path& file : files) {
    // What has another name as well, or is being read, keeps its bytes. Whatever fails here fails again
    // below, and is told there.
    if (fs::hard_link_count(file, error) == 1 && is_unused(file))
      for (uintmax_t left = fs::file_size(file, error); !error && left > kPartBytes;) {
        wait_for_turn();
        left -= kPartBytes;
        fs::resize_file(file, left, error);
      }
    wait_for_turn();
    fs::remove(file, error);
  }
  wait_for_turn();
  remove_directory(directory);
}

void BackgroundRemoval::wait_for_turn() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !paused_; });
}

}  // namespace megatron
