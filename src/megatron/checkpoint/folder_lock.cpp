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

constexpr const char* kUnnamed = "a process that did not tell its name";

std::string read_owner(int file) {
  char text[512] = {};
  const ssize_t count = ::pread(file, text, sizeof text - 1, 0);
  std::string owner(text, count > 0 ? static_cast<size_t>(count) : 0);
  owner = owner.substr(0, owner.find('\n'));
  return owner.empty() ? kUnnamed : owner;
}

}  // namespace

FolderInUse::FolderInUse(const std::string& folder, std::string holder)
    : ConfigError(fmt::format("{} is in use by another run ({}); wait until it ends, or name another folder",
                              folder, holder)),
      holder_(std::move(holder)) {}

std::string FolderLock::owner_of(const std::string& run) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  char time[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  return fmt::format("{}, process {} on {}, since {}", run, ::getpid(), host, time);
}

std::string FolderLock::unnamed_holder(const std::string& folder) {
  const int file = ::open((folder + "/.lock").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kUnnamed;
  const bool is_free = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  const std::string holder = is_free ? read_owner(file) : "";
  ::close(file);
  return holder;
}

FolderLock::FolderLock(const std::string& folder, std::string owner) {
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
    throw FolderInUse(folder, holder);
  }
  file_ = file;
  owner_ = std::move(owner);
  const std::string text = owner_ + "\n";
  // What the file says helps people only: a full disk is no reason to stop.
  if (::ftruncate(file, 0) == 0 && ::pwrite(file, text.data(), text.size(), 0) < 0) errno = 0;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)), owner_(std::move(other.owner_)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(owner_, other.owner_);
  return *this;
}

}  // namespace megatron
