#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::testing {

// How many pages of a file the system keeps in memory.
inline size_t cached_pages(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct stat facts {};
  if (::fstat(fd, &facts) != 0 || facts.st_size == 0) return ::close(fd), 0;
  const auto bytes = static_cast<size_t>(facts.st_size), page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  size_t count = 0;
  if (mapped != MAP_FAILED && ::mincore(mapped, bytes, resident.data()) == 0)
    for (const unsigned char each : resident) count += each & 1;
  if (mapped != MAP_FAILED) ::munmap(mapped, bytes);
  ::close(fd);
  return count;
}

// The same as cachestat tells it, from Linux 6.5 on and of most file systems; 0 where it does not.
inline size_t pages_told(const std::string& path) {
  constexpr long kCachestat = 451;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  uint64_t range[2] = {}, found[5] = {};
  const bool told = ::syscall(kCachestat, fd, range, found, 0) == 0;
  ::close(fd);
  return told ? found[0] : 0;
}

// Brings a file to the disk and lets the system forget it.
inline void drop_from_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// Whether files of a folder can pass the page cache by: a new one is written so, and is not in it.
inline bool can_be_direct(const std::string& folder) {
  const std::string path = folder + "/direct-probe";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  alignas(4096) static const char block[4096] = {1};
  const bool written = ::pwrite(fd, block, sizeof block, 0) == sizeof block;
  ::close(fd);
  const bool direct = written && cached_pages(path) == 0;
  ::unlink(path.c_str());
  return direct;
}

// Whether files of a folder stay in the page cache once they were written.
inline bool keeps_pages(const std::string& folder) {
  const std::string path = folder + "/cache-probe";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  const bool written = ::write(fd, "1", 1) == 1;
  ::close(fd);
  const bool kept = written && cached_pages(path) == 1;
  ::unlink(path.c_str());
  return kept;
}

}  // namespace megatron::testing
