#include "megatron/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "megatron/base/error.h"

namespace megatron {

namespace {

constexpr size_t buffer_bytes = size_t{1} << 20;

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {
  // A new file rather than a truncated one: whoever still writes the old partial file cannot spoil this one.
  const bool removed = ::unlink(partial_.c_str()) == 0 || errno == ENOENT;
  require(removed, "cannot remove {}: {}", partial_, std::strerror(errno));
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  require(fd_ >= 0, "cannot create {}: {}", partial_, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(fd_ >= 0, "{} was written after it was committed", path_);
  if (buffer_.size() + bytes.size() > buffer_bytes) flush();
  if (bytes.size() > buffer_bytes) return write_through(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    require(written >= 0, "cannot write {}: {}", partial_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::write_at(size_t offset, std::span<const std::byte> bytes) {
  require(fd_ >= 0, "{} was written after it was committed", path_);
  const size_t begin = offset, size = bytes.size();
  while (!bytes.empty()) {
    ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    require(written >= 0, "cannot write {}: {}", partial_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<size_t>(written);
  }
  // The disk begins now, not when commit() waits for it. Where it cannot, nothing is lost but time.
  if (size >= buffer_bytes)
    ::sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
}

void AtomicFile::bypass_cache() {
  if (direct_fd_ >= 0) return;
  // This file, whoever has replaced what its name leads to.
  const std::string own = fmt::format("/proc/self/fd/{}", fd_);
  direct_fd_ = ::open(own.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
}

void AtomicFile::write_block(size_t offset, std::span<const std::byte> bytes) {
  const bool aligned =
      offset % kBlockAlignment == 0 && reinterpret_cast<uintptr_t>(bytes.data()) % kBlockAlignment == 0;
  while (direct_fd_ >= 0 && aligned && bytes.size() >= kBlockAlignment) {
    const size_t whole = bytes.size() / kBlockAlignment * kBlockAlignment;
    const ssize_t written = ::pwrite(direct_fd_, bytes.data(), whole, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL) break;  // other alignments are asked for here
    require(written >= 0, "cannot write {}: {}", partial_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<size_t>(written);
  }
  write_at(offset, bytes);
}

void AtomicFile::reserve(size_t bytes) {
  if (bytes == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
  require(errno != ENOSPC && errno != EDQUOT && errno != EFBIG, "cannot write {} bytes to {}: {}", bytes,
          partial_, std::strerror(errno));
}

void AtomicFile::commit() {
  flush();
  const bool synced = ::fsync(fd_) == 0;
  require(synced, "cannot bring {} to the disk: {}", partial_, std::strerror(errno));
  struct stat mine {
  }, named{};
  bool ours = ::fstat(fd_, &mine) == 0 && ::stat(partial_.c_str(), &named) == 0 &&
              mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  require(ours, "{} was taken over by another writer: write it from one place at a time", partial_);
  const bool renamed = ::rename(partial_.c_str(), path_.c_str()) == 0;
  require(renamed, "cannot rename {} to {}: {}", partial_, path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
  sync_directory(std::filesystem::path(path_).parent_path().string());
}

void write_file_atomically(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

void sync_directory(const std::string& path) {
  const std::string name = path.empty() ? "." : path;
  int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(fd >= 0, "cannot open the directory {}: {}", name, std::strerror(errno));
  // Some file systems cannot sync a directory and say EINVAL: there the rename is as safe as it gets.
  bool synced = ::fsync(fd) == 0 || errno == EINVAL;
  int error = errno;
  ::close(fd);
  require(synced, "cannot bring the directory {} to the disk: {}", name, std::strerror(error));
}

}  // namespace megatron
