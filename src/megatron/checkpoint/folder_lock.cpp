#include "megatron/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::string describe_owner(const std::string& owner) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  char time[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  return fmt::format("{}, process {} on {}, since {}\n", owner, ::getpid(), host, time);
}

std::string read_owner(int file) {
  char text[512] = {};
  const ssize_t count = ::pread(file, text, sizeof text - 1, 0);
  std::string owner(text, count > 0 ? static_cast<size_t>(count) : 0);
  owner = owner.substr(0, owner.find('\n'));
  return owner.empty() ? "a process that did not tell its name" : owner;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, const std::string& owner) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("cannot create {}: {}", folder, error.message()));
  const std::string path = folder + "/.lock";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) throw ConfigError(fmt::format("cannot write into {}: {}", folder, std::strerror(errno)));
  if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const std::string holder = read_owner(file);
    ::close(file);
    if (reason != EWOULDBLOCK) return;  // no locks here: nothing is known of other runs
    throw ConfigError(fmt::format(
        "{} is in use by another run ({}); wait until it ends, or name another folder", folder, holder));
  }
  file_ = file;
  const std::string text = describe_owner(owner);
  // What the file says helps people only: a full disk is no reason to stop.
  if (::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) < 0) errno = 0;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

}  // namespace megatron
